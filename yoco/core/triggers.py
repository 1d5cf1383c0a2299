"""Which triggers a database should have, by the migrations that made them, and which of them it lacks."""

import re

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.loader import MigrationLoader

from yoco.core.append_only import AppendOnly
from yoco.core.vendor_sql import VendorSQL

CREATED = re.compile(r"CREATE (?:CONSTRAINT )?TRIGGER (\w+)")
DROPPED = re.compile(r"DROP TRIGGER (?:IF EXISTS )?(\w+)")
# Enabled in ordinary sessions, and of the function that refuses or checks.
WORKING = {
    "postgresql": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgenabled IN ('O', 'A')",
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger'",
}


def triggers_expected(connection: BaseDatabaseWrapper) -> set[str]:
    """Those of the migrations that are applied."""
    expected: set[str] = set()
    loader = MigrationLoader(connection)
    for key in sorted(loader.applied_migrations or {}):
        migration = loader.disk_migrations.get(key)
        for operation in migration.operations if migration else []:
            if isinstance(operation, AppendOnly):
                verbs = ("change", "truncate") if connection.vendor == "postgresql" else ("update", "delete")
                expected |= {f"{operation.table}_no_{verb}" for verb in verbs}
            elif isinstance(operation, VendorSQL):
                for statement in operation.statements[connection.vendor]:
                    expected -= set(DROPPED.findall(statement))
                    expected |= set(CREATED.findall(statement))
    return expected


def triggers_missing(connection: BaseDatabaseWrapper) -> list[str]:
    """Those that are gone or switched off."""
    with connection.cursor() as cursor:
        cursor.execute(WORKING[connection.vendor])
        working = {name for (name,) in cursor.fetchall()}
    return sorted(triggers_expected(connection) - working)
