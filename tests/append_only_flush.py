"""Emptying the database after a transactional test, although append-only tables refuse to be emptied.

Only Django's `flush` is let through, which nothing but the test runner and an operator's `manage.py flush` calls.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.operations import BaseDatabaseOperations


@contextmanager
def triggers_suspended(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Switch the triggers of all tables off, and on again at the end; both within one transaction."""
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT DISTINCT tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal")
            tables = [table for (table,) in cursor.fetchall()]
            switch_off = [f"ALTER TABLE {table} DISABLE TRIGGER USER" for table in tables]
            switch_on = [f"ALTER TABLE {table} ENABLE TRIGGER USER" for table in tables]
        else:
            cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
            triggers = cursor.fetchall()
            switch_off = [f'DROP TRIGGER "{name}"' for name, _ in triggers]
            switch_on = [sql for _, sql in triggers]
        for statement in switch_off:
            cursor.execute(statement)
        yield
        for statement in switch_on:
            cursor.execute(statement)


@pytest.fixture(scope="session", autouse=True)
def _flush_empties_append_only_tables() -> Iterator[None]:
    original = BaseDatabaseOperations.execute_sql_flush

    def flush(self: Any, sql_list: list[str]) -> None:
        with triggers_suspended(self.connection):
            original(self, sql_list)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseDatabaseOperations, "execute_sql_flush", flush)
        yield
