"""Lets the test database be emptied between transactional tests although append-only tables refuse it.

Only this plugin switches the triggers off, only for the flush, and only in tests.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db.backends.postgresql.operations import DatabaseOperations as PostgresOperations
from django.db.backends.sqlite3.operations import DatabaseOperations as SqliteOperations


@contextmanager
def _sqlite_triggers_off(connection: Any) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        triggers = cursor.fetchall()
        for name, _ in triggers:
            cursor.execute(f'DROP TRIGGER "{name}"')
        yield
        for _, sql in triggers:
            cursor.execute(sql)


@pytest.fixture(autouse=True, scope="session")
def flush_passes_append_only_triggers() -> Iterator[None]:
    plain_postgres, plain_sqlite = PostgresOperations.execute_sql_flush, SqliteOperations.execute_sql_flush

    def postgres(self: Any, sql_list: list[str]) -> None:
        # `replica` skips user triggers; the role of the throw-away test cluster is a superuser.
        plain_postgres(
            self, ["SET session_replication_role = replica", *sql_list, "SET session_replication_role = origin"]
        )

    def sqlite(self: Any, sql_list: list[str]) -> None:
        with _sqlite_triggers_off(self.connection):
            plain_sqlite(self, sql_list)

    PostgresOperations.execute_sql_flush = postgres  # type: ignore[method-assign]
    SqliteOperations.execute_sql_flush = sqlite  # type: ignore[method-assign]
    yield
    PostgresOperations.execute_sql_flush = plain_postgres  # type: ignore[method-assign]
    SqliteOperations.execute_sql_flush = plain_sqlite  # type: ignore[method-assign]
