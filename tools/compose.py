"""The services of docker-compose.yml as processes of this machine: the same commands, the same environment.

Only the addresses of PostgreSQL and Redis and the port of the web server differ.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import yaml

from tools.services import HOST, Postgres, Server, free_port

ROOT = Path(__file__).resolve().parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
PASSWORDS = {f"{whose}_PASSWORD": "p" * 64 for whose in ("POSTGRES", "OWNER", "APP")}
DOT_ENV = {"SECRET_KEY": "0123456789abcdef" * 4, "KEY_PEPPERS": "1=" + "k" * 64} | PASSWORDS
"""What the file .env must hold, with worthless secrets."""
ONCE = ["migrate", "grants"]
"""Run as the owner of the tables, before the others start."""
WORKER_READY = " ready."  # what Celery logs once it takes tasks
BEAT_READY = "beat: Starting..."


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Replace ${NAME:-default} and ${NAME:?message} as Compose does; raise ValueError for one that must be set."""

    def value(match: re.Match[str]) -> str:
        name, operator, operand = match["name"], match["operator"], match["operand"]
        if variables.get(name):
            return variables[name]
        if operator == ":?":
            raise ValueError(f"{name} must be set: {operand}")
        return operand

    return re.sub(r"(?<!\$)\$\{(?P<name>\w+)(?P<operator>:[-?])(?P<operand>[^}]*)\}", value, text)


def compose_environment(service: str, **dot_env: str) -> dict[str, str]:
    """The environment that the file gives a service, with these variables in .env besides those that must be there."""
    given = COMPOSE["services"][service]["environment"]
    return {name: interpolate(str(value), DOT_ENV | dot_env) for name, value in given.items()}


def native_server(service: str, directory: Path, *, database_url: str, redis_url: str, **dot_env: str) -> Server:
    """The service as a process of this machine, not started yet."""
    environment = compose_environment(service, **dot_env) | {
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "BEAT_STAMP": str(directory / "beat"),
    }
    port = free_port() if service == "web" else None
    ready_text = {"worker": WORKER_READY, "beat": BEAT_READY}.get(service, "")
    command = [part.replace("0.0.0.0:8000", f"{HOST}:{port}") for part in COMPOSE["services"][service]["command"]]
    command = [str(ROOT / part) if part == "manage.py" else part for part in command]
    return Server(service, command, directory=directory, port=port, ready_text=ready_text, environment=environment)


def make_roles(server: Postgres) -> tuple[str, str]:
    """Run deploy/postgres/roles.sql as it is documented; the URLs of the owner and of the serving role."""
    admin = f"postgresql://postgres:{server.password}@{HOST}:{server.port}/postgres"
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute("DROP DATABASE yoco")  # which a throw-away server comes with
    passwords = {"OWNER_PASSWORD": secrets.token_hex(16), "APP_PASSWORD": secrets.token_hex(16)}
    script = ROOT / "deploy" / "postgres" / "roles.sql"
    command = [str(server.binaries / "psql"), admin, "--quiet", "--set=ON_ERROR_STOP=1", f"--file={script}"]
    subprocess.run(command, env=passwords, check=True, timeout=30)
    owner, app = (
        f"postgresql://{role}:{passwords[name]}@{HOST}:{server.port}/yoco"
        for role, name in (("yoco_owner", "OWNER_PASSWORD"), ("yoco_app", "APP_PASSWORD"))
    )
    return owner, app
