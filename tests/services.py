"""Fixtures of real servers: a fresh database, Redis, and servers of a test's own that it may stop, kill and restart.

Tests that use them are marked `postgres` and/or `redis`.
"""

import os
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tools.compose import BEAT_READY, WORKER_READY
from tools.services import HOST, Postgres, Redis, Server, free_port, scratch_directory

ROOT = Path(__file__).resolve().parent.parent
PRODUCTION_LIKE = {
    "DJANGO_SETTINGS_MODULE": "yoco.settings",
    "SECRET_KEY": "only-for-tests-" + "x" * 50,
    "PYTHONPATH": str(ROOT),
}


def _drop(admin: psycopg.Connection[Any], name: str) -> None:
    """Drops a database with whatever sessions of ours are left in it."""
    for _ in range(50):
        try:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        except psycopg.errors.InsufficientPrivilege:
            time.sleep(0.2)  # autovacuum is in it, which belongs to the superuser and leaves by itself
        else:
            return
    raise RuntimeError(f"The database {name} could not be dropped: a session of another role stays in it.")


@pytest.fixture
def fresh_database_url() -> Iterator[str]:
    """The URL of a new, empty PostgreSQL database, for child processes; dropped at the end."""
    base, _, _ = os.environ["TEST_DATABASE_URL"].rpartition("/")
    name = f"yoco_{secrets.token_hex(6)}"
    with psycopg.connect(os.environ["TEST_DATABASE_URL"], autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield f"{base}/{name}"
        _drop(admin, name)


@pytest.fixture
def redis_url(worker_id: str) -> str:
    """The URL of a Redis database that no test of another pytest worker uses."""
    base, _, _ = os.environ["TEST_REDIS_URL"].rpartition("/")
    number = int(worker_id.removeprefix("gw")) % 16 if worker_id != "master" else 0
    return f"{base}/{number}"


@pytest.fixture
def server_directory() -> Iterator[Path]:
    """A directory for the data and logs of servers that this test starts."""
    with scratch_directory() as directory:
        yield directory


@pytest.fixture
def own_postgres(server_directory: Path) -> Iterator[Postgres]:
    """A running PostgreSQL of this test's own, to kill and start again."""
    with Postgres(server_directory) as server:
        yield server


@pytest.fixture
def own_redis(server_directory: Path) -> Iterator[Redis]:
    """A running Redis of this test's own, to kill and start again."""
    with Redis(server_directory) as server:
        yield server


def service_environment(database_url: str, redis_url: str = "", **more: str) -> dict[str, str]:
    """The environment of a `manage.py`, web, worker or beat process that runs apart from the test."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return kept | PRODUCTION_LIKE | {"DATABASE_URL": database_url, "REDIS_URL": redis_url} | more


def web_server(
    directory: Path, environment: dict[str, str], *, workers: int = 1, threads: int = 4, root: Path = ROOT
) -> Server:
    """A gunicorn that serves the service of the tree `root`, not started yet; its address is http://127.0.0.1:{port}."""
    port = free_port()
    command = [
        sys.executable, "-m", "gunicorn", "yoco.wsgi:application", "--bind", f"{HOST}:{port}",
        "--workers", str(workers), "--threads", str(threads), "--no-control-socket",
    ]  # fmt: skip
    environment = environment | {"PYTHONPATH": str(root)}
    return Server("web", command, directory=directory, port=port, environment=environment, cwd=root)


def celery_worker(directory: Path, environment: dict[str, str]) -> Server:
    """A Celery worker, not started yet."""
    arguments = ["worker", "--concurrency=1", "--loglevel=INFO"]
    return _celery(WORKER_READY, arguments, directory, environment)


def celery_beat(directory: Path, environment: dict[str, str]) -> Server:
    """The Celery beat, not started yet."""
    arguments = ["beat", "--loglevel=INFO", "--scheduler=yoco.beat:StampedScheduler"]
    return _celery(BEAT_READY, arguments, directory, environment)


def _celery(ready_text: str, arguments: list[str], directory: Path, environment: dict[str, str]) -> Server:
    command = [sys.executable, "-m", "celery", "--app=yoco.celery", *arguments]
    return Server(arguments[0], command, directory=directory, environment=environment, ready_text=ready_text)
