"""How long each migration keeps others from large tables: `python -m tools.migration_locks [--rows N]`.

Starts a throw-away PostgreSQL and runs every migration by itself; as soon as a table that grows with use is there, it
gets N rows. A second connection looks at `pg_locks` every few milliseconds. Printed is, for each migration and full
table, for how long it held ACCESS EXCLUSIVE (nobody reads or writes) and any other lock that holds writers off.
Exit status 1 if either lasted longer than --limit.
"""

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from tools.services import Postgres, scratch_directory

Key = tuple[str, str]

LOOK_EVERY = 0.002  # seconds
READERS = "AccessExclusiveLock"
WRITERS = {"ExclusiveLock", "ShareRowExclusiveLock", "ShareLock"}
LOCKS = """
SELECT c.relname, l.mode FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
WHERE l.pid = %s AND l.granted AND c.relkind = 'r' AND l.mode = ANY(%s)
"""
# The tables that grow with use, in the order in which they can be filled.
LARGE = ["incidents_rawreport", "incidents_incident", "guarantee_placement", "incidents_agentboot", "core_auditentry"]
# A value for a column of row number `g` where its type alone does not give one.
VALUES = {
    ("contracts_contract", "ends_on"): "DATE '2029-01-01'",
    ("contracts_contractyear", "ends_at"): "now() + interval '1 year'",
    ("incidents_incident", "id"): "g",
    ("incidents_incident", "kind"): "'unplanned'",
    ("incidents_rawreport", "body"): "repeat('{\"a report\": 1}', 100)",
    ("guarantee_placement", "incident_id"): "g",
    ("guarantee_placement", "unit_key"): "'unit ' || g",
    ("guarantee_placement", "lead"): "true",
    ("guarantee_placement", "outcome"): "'resolved'",
}
BY_TYPE = {
    "uuid": "md5({column} || g)::uuid",
    "boolean": "false",
    "jsonb": "'{{}}'",
    "date": "DATE '2027-01-01'",
    "timestamp with time zone": "now()",
    "character varying": "''",
    "text": "''",
}
COLUMNS = """
SELECT a.attname, format_type(a.atttypid, NULL), a.attnotnull, a.attidentity <> '', (
    SELECT f.relname FROM pg_constraint k JOIN pg_class f ON f.oid = k.confrelid
    WHERE k.conrelid = a.attrelid AND k.contype = 'f' AND k.conkey = ARRAY[a.attnum])
FROM pg_attribute a WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


@dataclass
class Held:
    """For how long a migration held a table, in seconds, and whom it kept away."""

    migration: str
    table: str
    readers: float = 0.0
    writers: float = 0.0


@dataclass
class Watch:
    """Looks at the locks of one backend from a connection of its own."""

    url: str
    pid: int
    seen: dict[Key, list[float]] = field(default_factory=dict)

    @contextmanager
    def looking(self) -> Iterator[None]:
        end = threading.Event()
        thread = threading.Thread(target=self._look, args=(end,))
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()

    def _look(self, end: threading.Event) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            while not end.is_set():
                now = time.monotonic()
                for table, mode in connection.execute(LOCKS, [self.pid, [READERS, *WRITERS]]):
                    span = self.seen.setdefault((table, mode), [now, now])
                    span[1] = time.monotonic()
                time.sleep(LOOK_EVERY)

    def held(self, migration: str, tables: list[str]) -> list[Held]:
        """What was seen of these tables."""
        rows = []
        for table in tables:
            spans = {mode: last - first for (name, mode), (first, last) in self.seen.items() if name == table}
            if spans:
                readers = spans.get(READERS, 0.0)
                writers = max(spans.get(mode, 0.0) for mode in WRITERS)
                rows.append(Held(migration, table, readers, max(readers, writers)))
        return rows


def fill(connection: psycopg.Connection[Any], table: str, rows: int) -> None:
    """Puts so many rows into an empty table, and one into each that they need."""
    if connection.execute(sql.SQL("SELECT EXISTS (SELECT FROM {})").format(sql.Identifier(table))).fetchone() == (
        True,
    ):
        return
    names, values = [], []
    for column, kind, required, generated, parent in connection.execute(COLUMNS, [table]).fetchall():
        given = VALUES.get((table, column))
        if given is None and (generated or not required):
            continue
        if given is None and parent is not None:
            fill(connection, parent, 1)
            given = f"(SELECT id FROM {parent} LIMIT 1)"  # noqa: S608 (a name that PostgreSQL told)
        elif parent is not None:
            fill(connection, parent, rows)
        names.append(sql.Identifier(column))
        values.append(given or BY_TYPE.get(kind, "1").format(column=f"'{column}'"))
    statement = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM generate_series(1, {}) g").format(
        sql.Identifier(table), sql.SQL(", ").join(names), sql.SQL(", ").join(map(sql.SQL, values)), sql.Literal(rows)
    )
    connection.execute(statement)
    connection.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(table)))


def measure(url: str, *, rows: int) -> Iterator[Held]:
    """Runs every migration; what each held of the tables that were there and full before it."""
    from django.db import connection
    from django.db.migrations.executor import MigrationExecutor

    executor = MigrationExecutor(connection)
    plan = [migration for migration, _ in executor.migration_plan(executor.loader.graph.leaf_nodes())]
    with psycopg.connect(url, autocommit=True) as other:
        for migration in plan:
            present = {name for (name,) in other.execute("SELECT relname FROM pg_class WHERE relkind = 'r'")}
            tables = [table for table in LARGE if table in present]
            for table in tables:
                fill(other, table, rows)
            connection.ensure_connection()
            watch = Watch(url, connection.connection.info.backend_pid)
            with watch.looking():
                MigrationExecutor(connection).migrate([(migration.app_label, migration.name)])
            yield from watch.held(f"{migration.app_label} {migration.name}", tables)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.migration_locks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--limit", type=float, default=1.0, help="seconds (default: %(default)s)")
    options = parser.parse_args(arguments)
    with scratch_directory() as directory, Postgres(directory, durable=True) as server:
        os.environ |= {"DATABASE_URL": server.url, "DJANGO_SETTINGS_MODULE": "yoco.settings"}
        import django

        django.setup()
        long = []
        print(f"| migration | table of {options.rows:,} rows | no reading, ms | no writing, ms |\n|---|---|---|---|")
        for held in measure(server.url, rows=options.rows):
            print(
                f"| {held.migration} | {held.table} | {held.readers * 1000:.0f} | {held.writers * 1000:.0f} |",
                flush=True,
            )
            if held.writers > options.limit:
                long.append(held)
    for held in long:
        print(f"{held.migration} holds {held.table} for {held.writers:.1f} s", file=sys.stderr)
    return 1 if long else 0


if __name__ == "__main__":
    sys.exit(main())
