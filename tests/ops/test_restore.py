"""The commands of docs/operations.md for backups, run as they stand there: back to the second before a mistake."""

import datetime
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import psycopg
import pytest

from tests.ops.service import Agent, column, manage, year_made
from tests.services import ROOT, service_environment, web_server
from tests.test_deployment import COMPOSE, interpolate
from tools.compose import make_roles
from tools.services import HOST, Postgres, unprivileged_user

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(300)]


class Archive:
    """`backup.sh` as an operator installs it, run as the user that PostgreSQL runs as."""

    def __init__(self, directory: Path, server: Postgres) -> None:
        self.script = directory / "backup.sh"
        shutil.copy(ROOT / "deploy" / "postgres" / "backup.sh", self.script)
        self.script.chmod(0o755)
        self.folder = directory / "backups"
        self.folder.mkdir()
        if user := unprivileged_user():
            shutil.chown(self.folder, user)
        self.environment = {
            "BACKUPS": str(self.folder),
            "PGBIN": str(server.binaries),
            "PATH": os.environ["PATH"],
            "PGHOST": HOST,
            "PGPORT": str(server.port),
            "PGUSER": "postgres",
            "PGPASSWORD": server.password,
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.script), *arguments],
            env=self.environment,
            cwd="/",
            user=unprivileged_user(),
            extra_groups=[] if unprivileged_user() else None,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def do(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def bases(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "base").iterdir())

    def segments(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "wal").iterdir() if path.name.endswith(".gz"))


@pytest.fixture
def archive(server_directory: Path, own_postgres: Postgres) -> Archive:
    """The test's cluster, with the options that docker-compose.yml gives to PostgreSQL: it archives."""
    archive = Archive(server_directory, own_postgres)
    with psycopg.connect(superuser(own_postgres), autocommit=True) as connection:
        for option in COMPOSE["services"]["postgres"]["command"][1:]:
            name, _, value = interpolate(option.removeprefix("-c"), {}).partition("=")
            here = value.replace("/usr/local/bin/backup.sh", str(archive.script)).replace(
                "/backups", str(archive.folder)
            )
            connection.execute(f"ALTER SYSTEM SET {name} = '{here}'".encode())
    own_postgres.restart()
    return archive


def superuser(server: Postgres) -> str:
    return f"postgresql://postgres:{server.password}@{HOST}:{server.port}/postgres"


def restored(archive: Archive, server: Postgres, directory: Path, at: str) -> Postgres:
    """A new cluster of the old one's backup, not started yet."""
    directory.mkdir()
    if user := unprivileged_user():
        shutil.chown(directory, user)
    copy = Postgres(directory)
    copy.password = server.password
    archive.do("restore", at, str(copy.data))
    return copy


def wait_for_end_of_recovery(server: Postgres) -> None:
    deadline = time.monotonic() + 60
    while column(superuser(server), "SELECT pg_is_in_recovery()") != ["False"]:
        assert time.monotonic() < deadline, server.last_words()
        time.sleep(0.1)


def test_back_to_the_second_before_a_mistake(server_directory: Path, own_postgres: Postgres, archive: Archive) -> None:
    owner, app = make_roles(own_postgres)
    manage(service_environment(owner), "migrate", "--no-input")
    manage(service_environment(owner), "database_roles", "--apply")
    archive.do("base")  # everything below is in the log only
    environment = service_environment(app)
    key = year_made(environment)
    with web_server(server_directory, environment) as web:
        agent = Agent(web, key)
        before, after = agent.report(1), agent.report(2)
        assert agent.send(before) == "created"
        proof = json.loads(manage(environment, "ledger_verify", "--format", "json"))
        statements = column(app, "SELECT sha256 FROM guarantee_statement ORDER BY id")
        assert proof["transactions"] >= 2
        assert statements
        time.sleep(0.1)
        well = datetime.datetime.now(datetime.UTC)
        time.sleep(0.1)
        assert agent.send(after) == "created"

    with psycopg.connect(owner, autocommit=True) as mistake:  # the one role that can
        mistake.execute("ALTER TABLE credits_posting DISABLE TRIGGER USER")
        mistake.execute("DELETE FROM credits_posting WHERE id = (SELECT max(id) FROM credits_posting)")
    with pytest.raises(AssertionError, match="transaction"):
        manage(environment, "ledger_verify")
    archive.do("flush")
    own_postgres.kill()  # the machine is lost too: only the archive is left

    with restored(archive, own_postgres, server_directory / "restored", well.isoformat()) as copy:
        wait_for_end_of_recovery(copy)
        environment = service_environment(app.replace(f":{own_postgres.port}/", f":{copy.port}/"))
        url = environment["DATABASE_URL"]
        assert json.loads(manage(environment, "ledger_verify", "--format", "json")) == proof
        assert column(url, "SELECT sha256 FROM guarantee_statement ORDER BY id") == statements
        reports = column(url, "SELECT report_id FROM incidents_rawreport WHERE agent_id = 'ops'")
        assert reports == [before["id"]]
        assert column(superuser(copy), "SHOW archive_mode") == ["off"]  # a rehearsal leaves the archive alone
        with web_server(server_directory, environment) as web:
            agent = Agent(web, key)
            # What came after that second is asked for again, and the agent still has it.
            assert agent.missing(2) == [[2, 2]]
            assert agent.send(before) == "duplicate"
            assert agent.send(after) == "created"
            assert agent.missing(2) == []


def test_it_refuses_what_cannot_be_and_prunes_what_nobody_needs(
    server_directory: Path, own_postgres: Postgres, archive: Archive
) -> None:
    early = datetime.datetime.now(datetime.UTC)
    archive.do("base")
    time.sleep(1.1)  # names tell seconds
    refused = archive.run("restore", early.isoformat(), str(server_directory / "nowhere"))
    assert refused.returncode == 1
    assert "no base backup had ended" in refused.stderr
    archive.do("flush")
    archive.do("base")
    archive.do("flush")
    (first, second), segments = archive.bases(), archive.segments()
    full = archive.run("restore", "2999-01-01 00:00:00+00", str(own_postgres.data))
    assert full.returncode == 1
    assert "is not empty" in full.stderr

    name = segments[0].removesuffix(".gz")
    other = server_directory / "other"
    other.write_bytes(b"another content")
    clash = archive.run("archive", str(other), name)
    assert clash.returncode == 1
    assert "another content" in clash.stderr
    assert archive.segments() == segments

    archive.do("prune", "7")
    assert archive.bases() == [first, second]
    archive.do("prune", "-1")  # older than tomorrow: all but the newest
    assert archive.bases() == [second]
    assert segments[0] not in archive.segments()
    assert archive.segments()
    usage = archive.run("restore")
    assert usage.returncode == 2
    assert "backup.sh base" in usage.stderr
    with restored(archive, own_postgres, server_directory / "restored", "latest") as copy:
        wait_for_end_of_recovery(copy)
