"""A PostgreSQL with the two roles, the service on it, and an agent's requests to it: what tests of operations share."""

import datetime
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg

from tests.ingest.reports import heartbeat, report
from tests.services import ROOT
from tools.services import HOST, Server

BOOT = str(uuid.uuid4())


def manage(environment: Mapping[str, str], *arguments: str, root: Path = ROOT) -> str:
    """What `manage.py` prints; it must end with 0."""
    return python(environment, "manage.py", *arguments, root=root)


def python(environment: Mapping[str, str], *arguments: str, root: Path = ROOT) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=dict(environment) | {"PYTHONPATH": str(root)},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def year_made(environment: Mapping[str, str], root: Path = ROOT) -> str:
    """A contract year with its reports, statement, credit and payment, made as the serving role; an ingest key."""
    return python(environment, "-m", "tests.security.year_as_app", root=root).split()[-2]


@dataclass
class Agent:
    """An agent whose reports count up; all of one boot."""

    server: Server
    key: str

    def post(self, path: str, body: Any) -> httpx.Response:
        url = f"http://{HOST}:{self.server.port}/api/v1/{path}"
        return httpx.post(url, json=body, headers={"Authorization": f"Bearer {self.key}"}, timeout=30)

    def report(self, seq: int) -> dict[str, Any]:
        now = datetime.datetime.now(datetime.UTC).isoformat()
        return report(agent_id="ops", boot_id=BOOT, seq=seq, sent_at=now)

    def send(self, body: dict[str, Any]) -> str:
        answer = self.post("reports", [body])
        assert answer.status_code == 200, answer.text
        status: str = answer.json()["results"][0]["status"]
        return status

    def missing(self, seq: int) -> list[list[int]]:
        now = datetime.datetime.now(datetime.UTC).isoformat()
        answer = self.post("heartbeats", heartbeat(agent_id="ops", boot_id=BOOT, seq=seq, at=now))
        assert answer.status_code == 200, answer.text
        ranges: list[list[int]] = answer.json()["missing"]
        return ranges


def column(url: str, query: str) -> list[Any]:
    """The first column of the answer, as strings where it is a UUID."""
    with psycopg.connect(url, autocommit=True) as connection:
        return [str(row[0]) for row in connection.execute(query.encode())]
