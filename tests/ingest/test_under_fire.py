"""Exactly once, with real processes: whatever is killed, the stored set equals the sent set, each once."""

import concurrent.futures
import contextlib
import datetime
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.ingest.reports import report
from tests.services import ROOT, service_environment, web_server
from tools.services import Postgres, Redis, Server

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(400)]

SET_UP = """
from tests.people import build_world
world = build_world()
print("KEY", world.key_text)
"""


@pytest.fixture(autouse=True)
def now() -> None:
    """The real clock: the servers are processes of their own."""


@dataclass
class Service:
    """A web server on a PostgreSQL of its own, with the demo's tenants in it."""

    web: Server
    url: str
    key: str
    database_url: str
    answered: int = 0

    def post(self, reports: list[dict[str, Any]]) -> dict[str, str]:
        """The status of each report. Raises httpx.HTTPError when the service did not answer 200 or 422."""
        response = httpx.post(
            f"{self.url}/api/v1/reports",
            content=json.dumps(reports),
            headers={"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"},
            timeout=60,
        )
        if response.status_code == 503:
            assert response.headers["Retry-After"]
            assert response.headers["Content-Type"] == "application/problem+json"
        response.raise_for_status()
        self.answered += 1
        return {result["id"]: result["status"] for result in response.json()["results"]}

    def flush(self, reports: list[dict[str, Any]], *, seconds: float = 150, batch: int = 20) -> Counter[str]:
        """Sends as an agent does: again and again, until every report was answered."""
        pending = {body["id"]: body for body in reports}
        answers: Counter[str] = Counter()
        deadline = time.monotonic() + seconds
        while pending:
            assert time.monotonic() < deadline, f"{len(pending)} reports were never answered"
            some = random.sample(list(pending.values()), min(len(pending), random.randint(1, batch)))
            try:
                for report_id, status in self.post(some).items():
                    answers[status] += 1
                    pending.pop(report_id)
            except httpx.HTTPError:
                time.sleep(0.1)
        return answers

    def stored(self) -> dict[str, list[tuple[Any, ...]]]:
        """Rows of what matters, each once or not."""
        with psycopg.connect(self.database_url) as connection:
            return {
                "reports": connection.execute(
                    "SELECT report_id::text, conflict, body::jsonb FROM incidents_rawreport"
                ).fetchall(),
                "incidents": connection.execute(
                    "SELECT i.public_id::text, i.state, p.outcome FROM incidents_incident i "
                    "LEFT JOIN guarantee_placement p ON p.incident_id = i.id"
                ).fetchall(),
            }


def prepare(database_url: str) -> str:
    """Migrates, makes the tenants, returns the agent key."""
    environment = service_environment(database_url)
    subprocess.run([sys.executable, "manage.py", "migrate", "--verbosity=0"], cwd=ROOT, env=environment, check=True)
    done = subprocess.run(
        [sys.executable, "manage.py", "shell", "--verbosity=0", "--command", SET_UP],
        cwd=ROOT, env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("KEY "))


@contextlib.contextmanager
def serving(directory: Path, database_url: str, *, redis_url: str = "", workers: int = 2) -> Iterator[Service]:
    key = prepare(database_url)
    environment = service_environment(database_url, redis_url, INGEST_RATE="10000", INGEST_BURST="10000")
    web = web_server(directory, environment, workers=workers)
    web.start()
    try:
        yield Service(web=web, url=f"http://127.0.0.1:{web.port}", key=key, database_url=database_url)
    finally:
        web.stop(5)


def incidents(number: int, boot: str | None = None) -> list[dict[str, Any]]:
    """Reports of `number` incidents, two each, all in the past of the real clock."""
    boot = boot or str(uuid.uuid4())
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=2)
    reports = []
    for index in range(number):
        at = start + datetime.timedelta(minutes=10 * index % 2000)
        name = str(uuid.uuid4())
        for seq, kind in ((2 * index + 1, "incident.detected"), (2 * index + 2, "incident.resolved")):
            body = report(
                incident_id=name, seq=seq, boot_id=boot, type=kind, where__node=f"n{index}", where__rank=index
            )
            body["phases"] = {"started_at": at.isoformat(), "detected_at": at.isoformat()}
            if kind == "incident.resolved":
                body["phases"]["resumed_at"] = (at + datetime.timedelta(minutes=2)).isoformat()
            body["progress"]["last_checkpoint_at"] = None
            body["sent_at"] = (at + datetime.timedelta(minutes=3, seconds=seq)).isoformat()
            reports.append(body)
    return reports


def assert_each_once(service: Service, sent: list[dict[str, Any]]) -> None:
    stored = service.stored()
    assert {row[0]: row[2] for row in stored["reports"]} == {body["id"]: body for body in sent}
    assert len(stored["reports"]) == len(sent)
    assert not any(row[1] for row in stored["reports"])
    assert sorted(row[0] for row in stored["incidents"]) == sorted({body["incident_id"] for body in sent})
    assert {row[1] for row in stored["incidents"]} == {"resolved"}
    assert all(row[2] for row in stored["incidents"]), "every incident is placed"


@contextlib.contextmanager
def meanwhile(action: Callable[[], None]) -> Iterator[None]:
    """Runs an action beside the block, and raises what it raised."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(action)
        yield
        future.result()


def test_many_processes_posting_the_same(server_directory: Path, fresh_database_url: str) -> None:
    with serving(server_directory, fresh_database_url, workers=4) as service:
        sent = incidents(20)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = sum(pool.map(lambda _: service.flush(list(sent)), range(8)), Counter())
        assert answers["created"] == len(sent)
        assert answers["duplicate"] == 7 * len(sent)
        assert_each_once(service, sent)


def test_the_same_id_with_two_contents_at_once_keeps_both(server_directory: Path, fresh_database_url: str) -> None:
    with serving(server_directory, fresh_database_url, workers=4) as service:
        sent = incidents(6)
        other = [{**body, "attempts": [{"at": body["sent_at"], "outcome": "other"}]} for body in sent]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: service.flush(list(sent if number % 2 else other)), range(8)))
        rows = service.stored()["reports"]
        assert len(rows) == 2 * len(sent)
        assert Counter(row[0] for row in rows if not row[1]) == Counter(body["id"] for body in sent)
        assert Counter(row[0] for row in rows if row[1]) == Counter(body["id"] for body in sent)


def workers_of(server: Server) -> list[int]:
    """The worker processes of a gunicorn."""
    assert server.process is not None
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    return [int(pid) for pid in children.split()]


def test_web_workers_killed_at_any_moment(server_directory: Path, fresh_database_url: str) -> None:
    with serving(server_directory, fresh_database_url, workers=1) as service:
        sent, kills = incidents(60), 0

        def kill() -> None:
            nonlocal kills
            for _ in range(4):
                # A new worker answers something before it dies too, at a random moment of its next request.
                seen = service.answered
                while service.answered == seen:
                    time.sleep(0.005)
                time.sleep(random.uniform(0, 0.08))
                for pid in workers_of(service.web):
                    os.kill(pid, signal.SIGKILL)
                    kills += 1

        with meanwhile(kill):
            service.flush(sent, seconds=200, batch=3)
            # What is left of the kills falls on reports that are stored already.
            while kills < 4:
                with contextlib.suppress(httpx.HTTPError):
                    service.post(sent[:3])
        assert_each_once(service, sent)


def test_killed_between_commit_and_answer(server_directory: Path, fresh_database_url: str) -> None:
    """The web server is killed while PostgreSQL commits: the reports are stored, and nobody was told."""
    with serving(server_directory, fresh_database_url) as service:
        sent = incidents(3)
        with psycopg.connect(fresh_database_url, autocommit=True) as admin:
            # A deferred trigger holds COMMIT itself open for a second, so that the kill falls on its edge.
            admin.execute("CREATE FUNCTION wait_a_second() RETURNS trigger LANGUAGE plpgsql AS "
                          "'BEGIN PERFORM pg_sleep(1); RETURN NULL; END'")  # fmt: skip
            admin.execute("CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON incidents_run DEFERRABLE INITIALLY DEFERRED "
                          "FOR EACH ROW EXECUTE FUNCTION wait_a_second()")  # fmt: skip

            def kill() -> None:
                deadline = time.monotonic() + 20
                while time.monotonic() < deadline:
                    busy = admin.execute(
                        "SELECT count(*) FROM pg_stat_activity "
                        "WHERE query = 'COMMIT' AND state = 'active' AND datname = current_database()"
                    ).fetchone()
                    if busy and busy[0]:
                        break
                    time.sleep(0.01)
                for pid in workers_of(service.web):
                    os.kill(pid, signal.SIGKILL)

            with meanwhile(kill), pytest.raises(httpx.HTTPError):
                service.post(sent)
            deadline = time.monotonic() + 20
            while len(service.stored()["reports"]) < len(sent):
                assert time.monotonic() < deadline, "PostgreSQL commits although its client is gone"
                time.sleep(0.1)
            admin.execute("DROP TRIGGER wait ON incidents_run")
        answers = service.flush(sent)
        assert answers == Counter(duplicate=len(sent))
        assert_each_once(service, sent)


def test_postgres_restarted(server_directory: Path, own_postgres: Postgres) -> None:
    with serving(server_directory, own_postgres.url) as service:
        sent = incidents(80)

        def restart() -> None:
            for crash in (own_postgres.kill, own_postgres.stop):
                time.sleep(0.5)
                crash()
                with pytest.raises(httpx.HTTPStatusError) as refused:
                    service.post(sent[:1])
                assert refused.value.response.status_code == 503
                own_postgres.start()

        with meanwhile(restart):
            service.flush(sent, seconds=200)
        assert_each_once(service, sent)


@pytest.mark.redis
def test_redis_gone(server_directory: Path, fresh_database_url: str, own_redis: Redis) -> None:
    with serving(server_directory, fresh_database_url, redis_url=own_redis.url) as service:
        sent = incidents(20)
        assert service.flush(sent[:10])["created"] == 10
        own_redis.kill()
        assert service.flush(sent[10:])["created"] == 30
        assert_each_once(service, sent)
