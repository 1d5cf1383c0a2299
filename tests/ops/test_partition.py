"""deploy/postgres/partition_reports.sql: the service goes on, and every invariant of the table still holds."""

import datetime
import subprocess
from pathlib import Path

import psycopg
import pytest

from tests.ops.service import Agent, column, manage, year_made
from tests.services import ROOT, service_environment, web_server
from tools.compose import make_roles
from tools.services import Postgres
from yoco.core.ids import uuid7

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(300)]
TABLE = "incidents_rawreport"
ALIKE = [  # what has to be the same before and after
    f"SELECT replace(indexdef, ' ON ONLY ', ' ON ') FROM pg_indexes WHERE tablename = '{TABLE}' "
    "AND indexname NOT LIKE '%_pkey' ORDER BY 1",
    f"SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = '{TABLE}'::regclass "
    "AND contype <> 'p' ORDER BY 1",
    "SELECT concat_ws(' ', column_name, data_type, character_maximum_length, is_nullable, is_identity) "
    f"FROM information_schema.columns WHERE table_name = '{TABLE}' ORDER BY 1",
    f"SELECT md5(string_agg(t::text, ';' ORDER BY id)) FROM {TABLE} t",
]


def test_reports_are_split_by_month(server_directory: Path, own_postgres: Postgres) -> None:
    owner, app = make_roles(own_postgres)
    manage(service_environment(owner), "migrate", "--no-input")
    manage(service_environment(owner), "database_roles", "--apply")
    key = year_made(service_environment(app))
    before = [column(owner, query) for query in ALIKE]
    today = datetime.datetime.now(datetime.UTC)
    script = ROOT / "deploy" / "postgres" / "partition_reports.sql"
    done = subprocess.run(
        [own_postgres.binaries / "psql", owner, "--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1",
         f"--set=until={today.year + 1}-06-01", f"--file={script}"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    manage(service_environment(owner), "database_roles", "--apply")
    after = [column(owner, query) for query in ALIKE]
    assert after == before

    month = f"incidents_rawreport_{today:%Y_%m}"
    with web_server(server_directory, service_environment(app)) as web:
        agent = Agent(web, key)
        first = agent.report(1) | {"id": str(uuid7())}
        assert agent.send(first) == "created"
        assert agent.send(first) == "duplicate"
        assert agent.send(first | {"kind": "preventive"}) == "conflict"
        assert agent.send(agent.report(2)) == "created"  # an id that tells no time
        assert agent.missing(2) == []
    assert column(owner, f"SELECT DISTINCT report_id FROM {month} WHERE agent_id = 'ops'") == [first["id"]]
    assert column(owner, "SELECT seq FROM incidents_rawreport_other WHERE agent_id = 'ops'") == ["2"]
    assert column(owner, "SELECT count(DISTINCT id) = count(*) FROM incidents_rawreport") == ["True"]
    manage(service_environment(app), "ledger_verify")
    manage(service_environment(app), "check", "--database", "default", "--fail-level", "WARNING")
    for statement in (
        f"UPDATE {month} SET seq = 0",
        f"DELETE FROM {month}",
        f"TRUNCATE {month}",
        "TRUNCATE incidents_rawreport",
    ):
        for role, error in ((owner, "append-only"), (app, "permission denied")):
            with psycopg.connect(role) as connection, pytest.raises(psycopg.Error, match=error):
                connection.execute(statement.encode())
    assert "No changes" in manage(service_environment(owner), "makemigrations", "--check", "--dry-run")
