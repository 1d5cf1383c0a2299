"""Upgrade and rollback as docs/operations.md describes them, between the last schema's code and today's, under load.

The earlier code comes from this repository's history: the newest landed state that lacked migrations of today.
"""

import functools
import io
import json
import re
import subprocess
import tarfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.ops.service import Agent, column, manage, year_made
from tests.services import ROOT, service_environment, web_server
from tools.compose import make_roles
from tools.services import HOST, Postgres, Server

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(400)]
MIGRATION = re.compile(r"^yoco/(\w+)/migrations/(\d{4}\w*)\.py$")
PATIENCE = {"PGOPTIONS": "-c lock_timeout=5s"}


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout


def migrations(files: list[str]) -> dict[str, list[str]]:
    """The names of the migrations of each app, in order."""
    found: dict[str, list[str]] = {}
    for match in filter(None, map(MIGRATION.match, sorted(files))):
        found.setdefault(match[1], []).append(match[2])
    return found


TODAY = migrations([str(path.relative_to(ROOT)) for path in ROOT.glob("yoco/*/migrations/*.py")])


@functools.cache
def earlier_commit() -> str | None:
    """The newest landed commit with fewer migrations and none that was renamed since; None without history."""
    try:
        added = git("log", "--first-parent", "-m", "--diff-filter=A", "--format=%H", "--", "yoco/*/migrations/0*.py")
        for commit in added.decode().split():
            files = git("ls-tree", "-r", "--name-only", f"{commit}^", "yoco").decode().split()
            then = migrations(files)
            if then and all(set(names) <= set(TODAY.get(app, [])) for app, names in then.items()):
                return f"{commit}^"
    except (OSError, subprocess.CalledProcessError):
        return None
    return None


@pytest.fixture
def earlier(server_directory: Path) -> Path:
    """The tree of the code before today's migrations."""
    commit = earlier_commit()
    if commit is None:
        pytest.skip("this clone has no history to take the earlier code from")
    tree = server_directory / "earlier"
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit))) as archive:
        archive.extractall(tree)  # of our own making; `filter` came with Python 3.11.4
    return tree


@dataclass
class Stream(threading.Thread):
    """An agent that reports without a pause, to whichever server it is pointed at, and repeats what got no answer."""

    agent: Agent
    refused: list[str] = field(default_factory=list)
    seq: int = 0
    over: bool = False

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        while not self.over:
            body = self.agent.report(self.seq + 1)
            while True:
                try:
                    answer = self.agent.post("reports", [body])
                except httpx.TransportError:
                    time.sleep(0.1)
                    continue
                if answer.status_code == 200:
                    break
                self.refused.append(f"{answer.status_code} {answer.text[:200]}")
                time.sleep(0.1)
            self.seq += 1
            time.sleep(0.05)

    def some_more(self) -> None:
        """Returns once five more reports were taken."""
        goal, deadline = self.seq + 5, time.monotonic() + 60
        while self.seq < goal:
            assert time.monotonic() < deadline, self.refused[-1:]
            time.sleep(0.05)


def ready(server: Server) -> int:
    return httpx.get(f"http://{HOST}:{server.port}/readyz", timeout=30).status_code


def test_up_and_back_while_reports_arrive(server_directory: Path, own_postgres: Postgres, earlier: Path) -> None:
    owner_url, app_url = make_roles(own_postgres)
    owner, app = service_environment(owner_url, **PATIENCE), service_environment(app_url)
    manage(owner, "migrate", "--no-input", root=earlier)
    manage(owner, "database_roles", "--apply", root=earlier)
    key = year_made(app, root=earlier)
    proof = json.loads(manage(app, "ledger_verify", "--format", "json", root=earlier))
    assert proof["transactions"] >= 2
    places = {name: server_directory / name for name in ("old", "new", "old-again")}
    for place in places.values():
        place.mkdir()

    with web_server(places["old"], app, root=earlier) as old:
        agent = Agent(old, key)
        stream = Stream(agent)
        stream.start()
        stream.some_more()
        # Upgrade: the schema first, under the running old code, then the new code beside it, then the old one goes.
        manage(owner, "migrate", "--no-input")
        manage(owner, "database_roles", "--apply")
        stream.some_more()
        assert ready(old) == 200
        with web_server(places["new"], app) as new:
            agent.server = new
            stream.some_more()
            old.stop()
            assert ready(new) == 200
            assert json.loads(manage(app, "ledger_verify", "--format", "json")) == proof
            # Rollback: the old code on the new schema, which needs nothing but a restart.
            with web_server(places["old-again"], app, root=earlier) as again:
                agent.server = again
                stream.some_more()
                # And of the schema, by the code that knows how: only now is the new code of no use.
                for name, names in TODAY.items():
                    then = migrations(
                        [str(path.relative_to(earlier)) for path in earlier.glob(f"yoco/{name}/migrations/*.py")]
                    )
                    if then.get(name, []) != names:
                        manage(owner, "migrate", "--no-input", name, then[name][-1] if name in then else "zero")
                stream.some_more()
                assert ready(again) == 200, httpx.get(f"http://{HOST}:{again.port}/readyz").text
                assert ready(new) == 503
                assert json.loads(manage(app, "ledger_verify", "--format", "json", root=earlier)) == proof
                # Once more: what the way back left is no obstacle.
                manage(owner, "migrate", "--no-input")
                manage(owner, "database_roles", "--apply")
                stream.some_more()
                assert ready(new) == 200
                stream.over = True
                stream.join(30)
                assert agent.missing(stream.seq) == []
    assert stream.refused == []
    known = column(app_url, "SELECT seq FROM incidents_rawreport WHERE agent_id = 'ops' ORDER BY seq")
    assert known == [str(seq) for seq in range(1, stream.seq + 1)]  # each once
