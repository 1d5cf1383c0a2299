"""A restored backup proves itself: the same chains, the same statements, and `ledger_verify` in a fresh process."""

import datetime
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection, connections

from tests.credits import books as make
from tests.guarantee.facts import at, incident, restart
from tests.people import build_world
from tests.services import service_environment
from tools.services import Postgres, find_postgres
from yoco.credits.models import Credit
from yoco.credits.services import credit_apply, credit_approve, credit_issue, credits_reinstate
from yoco.guarantee.models import Statement
from yoco.guarantee.services import placements_refresh, years_close

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.django_db(transaction=True)]

ROOT = Path(__file__).resolve().parents[2]
SEPTEMBER_2027 = datetime.date(2027, 9, 2)
AFTER = datetime.datetime(2027, 11, 1, tzinfo=datetime.UTC)


def fill() -> None:
    """A closed year with its credit applied to one order and reinstated from another."""
    world = build_world()
    row = incident(world.contract, **restart(at(1)))
    placements_refresh(incident_ids=[row.pk])
    years_close(as_of=AFTER)
    credit = Credit.objects.get()
    credit_issue(credit_id=credit.pk, actor=world.account_manager, reason="0 de 1: «año corto»")
    credit_approve(credit_id=credit.pk, actor=world.second_account_manager)
    first, second = (make.order(world.contract, n, day=SEPTEMBER_2027) for n in (4000, 800))
    for paid in (first, second):
        credit_apply(order_id=paid.pk, actor=world.account_manager, amount_minor=300)
    make.cancel(second)
    credits_reinstate(order_id=second.pk, actor=None)


def verified_here(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    call_command("ledger_verify", format="json")
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def verified_by_command(database_url: str) -> dict[str, Any]:
    """`manage.py ledger_verify` in a process of its own; it must end with 0."""
    done = subprocess.run(
        [sys.executable, "manage.py", "ledger_verify", "--format", "json"],
        cwd=ROOT,
        env=service_environment(database_url),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.postgres
def test_a_dump_restored_into_a_fresh_cluster_verifies(
    tmp_path: Path, own_postgres: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("the test database is not PostgreSQL")
    fill()
    before = verified_here(capsys)
    assert before["transactions"] == 4
    statements = {str(pk): sha256 for pk, sha256 in Statement.objects.values_list("pk", "sha256")}
    source = connection.settings_dict
    dump = tmp_path / "yoco.dump"
    run(
        [find_postgres() / "pg_dump", "--format=custom", "--no-owner", f"--file={dump}", "--host", source["HOST"],
         "--port", str(source["PORT"]), "--username", source["USER"], source["NAME"]],
        PGPASSWORD=source["PASSWORD"],
    )  # fmt: skip
    run([find_postgres() / "pg_restore", "--no-owner", "--exit-on-error", "--dbname", own_postgres.url, dump])

    assert verified_by_command(own_postgres.url) == before
    with psycopg.connect(own_postgres.url, autocommit=True) as restored:
        rows = restored.execute("SELECT id::text, sha256 FROM guarantee_statement").fetchall()
        assert dict(rows) == statements
        # The triggers came along: the restored books are as closed as the old ones.
        with pytest.raises(psycopg.errors.IntegrityConstraintViolation, match="append-only"):
            restored.execute("UPDATE credits_posting SET minor = 1")
        restored.execute("ALTER TABLE credits_posting DISABLE TRIGGER USER")
        restored.execute(
            "UPDATE credits_posting SET minor = minor + 1 WHERE id = (SELECT min(id) FROM credits_posting)"
        )
    with pytest.raises(AssertionError, match="does not match its hash"):
        verified_by_command(own_postgres.url)


@pytest.mark.parametrize("way", ["file copied", "online backup"])
def test_a_copied_sqlite_file_verifies(tmp_path: Path, way: str, capsys: pytest.CaptureFixture[str]) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("the test database is not SQLite")
    fill()
    before = verified_here(capsys)
    statements = {pk.hex: sha256 for pk, sha256 in Statement.objects.values_list("pk", "sha256")}
    name, copy = connection.settings_dict["NAME"], tmp_path / "copy.sqlite3"
    if way == "file copied":
        connections.close_all()  # the service is stopped: the last to leave folds the log into the file
        shutil.copy(name, copy)
    else:
        with sqlite3.connect(name) as source, sqlite3.connect(copy) as target:
            source.backup(target)

    assert verified_by_command(f"sqlite:///{copy}") == before
    with sqlite3.connect(copy) as restored:
        assert dict(restored.execute("SELECT id, sha256 FROM guarantee_statement")) == statements
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            restored.execute("UPDATE credits_posting SET minor = 1")


def run(command: list[Any], **environment: str) -> None:
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
