"""Migrations can be taken back and keep nobody waiting long. `python -m tools.migration_locks` measures a million."""

import os
import re
import subprocess
import sys

import psycopg
import pytest

from tests.services import ROOT, service_environment
from tools.migration_locks import LARGE
from tools.services import find_postgres


def schema(url: str) -> str:
    """Everything that PostgreSQL knows of the tables, triggers and functions."""
    dump = subprocess.run(
        [find_postgres() / "pg_dump", "--schema-only", "--no-owner", url],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    # Each dump has a token of its own.
    return "\n".join(line for line in dump.stdout.splitlines() if not re.match(r"\\(un)?restrict ", line))


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(400)
def test_every_app_goes_back_to_nothing_and_forward_to_the_same(fresh_database_url: str) -> None:
    script = (
        "import django; django.setup()\n"
        "from django.core.management import call_command\n"
        "from django.db import connection\n"
        "from django.db.migrations.executor import MigrationExecutor\n"
        "executor = MigrationExecutor(connection)\n"
        "executor.migrate([(app, None) for app in sorted({app for app, _ in executor.loader.graph.leaf_nodes()})])\n"
    )
    environment = service_environment(fresh_database_url)

    def run(*command: str) -> None:
        done = subprocess.run(
            [sys.executable, *command], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=180
        )
        assert done.returncode == 0, done.stderr[-3000:]

    run("manage.py", "migrate", "--no-input", "--verbosity=0")
    before = schema(fresh_database_url)
    assert all(f"CREATE TABLE public.{table} " in before for table in LARGE)
    run("-c", script)
    with psycopg.connect(fresh_database_url) as connection:
        left = [
            name
            for (name,) in connection.execute(
                "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
            )
        ]
    assert left == ["django_migrations"]
    run("manage.py", "migrate", "--no-input", "--verbosity=0")
    assert schema(fresh_database_url) == before


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(400)
def test_the_locks_of_each_migration_can_be_measured() -> None:
    """On few rows: that it runs with the migrations of today. What it sees of them depends on the machine's speed."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.migration_locks", "--rows=1000", "--limit=60"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("| migration | table of 1,000 rows | no reading, ms | no writing, ms |")
