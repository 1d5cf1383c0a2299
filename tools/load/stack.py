"""The whole service on this machine, as docker-compose.yml starts it."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tools.compose import ONCE, compose_environment, make_roles, native_server
from tools.load.measuring import Fault
from tools.services import HOST, Postgres, Redis, Server, ServiceError


@dataclass
class Stack:
    postgres: Postgres
    redis: Redis
    web: Server
    worker: Server
    beat: Server
    environment: dict[str, str]
    """Of the serving processes, also for Django in this one."""
    guard: threading.Lock = field(default_factory=threading.Lock)
    """Whoever kills a server on purpose holds it until the server is up again."""
    restarts: Counter[str] = field(default_factory=Counter)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.web.port}"

    @property
    def servers(self) -> list[Server]:
        return [self.postgres, self.redis, self.web, self.worker, self.beat]


@contextmanager
def databases_ready(directory: Path, **dot_env: str) -> Iterator[Stack]:
    """PostgreSQL with the tables and both roles, and Redis; web, worker and beat are not started yet."""
    with Postgres(directory, durable=True) as postgres, Redis(directory) as redis:
        owner, app = make_roles(postgres)
        for name in ONCE:
            once = native_server(name, directory, database_url=owner, redis_url=redis.url, **dot_env)
            done = subprocess.run(once.command, env=once.environment, capture_output=True, text=True, timeout=180)
            if done.returncode:
                raise ServiceError(f"{name} failed: {done.stderr.strip().splitlines()[-1]}")
        web, worker, beat = (
            native_server(name, directory, database_url=app, redis_url=redis.url, **dot_env)
            for name in ("web", "worker", "beat")
        )
        environment = compose_environment("web", **dot_env) | {"DATABASE_URL": app, "REDIS_URL": redis.url}
        yield Stack(postgres, redis, web, worker, beat, environment)


@contextmanager
def serving(stack: Stack) -> Iterator[None]:
    """Web, worker and beat, each started again when it ends, as `restart: unless-stopped` has it."""
    ours, stop = (stack.web, stack.worker, stack.beat), threading.Event()

    def watch() -> None:
        while not stop.wait(0.5):
            with stack.guard:
                for server in ours:
                    if not server.running():
                        stack.restarts[server.name] += 1
                        server.start()

    watcher = threading.Thread(target=watch)
    with ExitStack() as running:
        for server in ours:
            running.enter_context(server)
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()


def kill_and_start(stack: Stack, server: Server, down_s: float) -> Fault:
    """SIGKILL, some time without, and a start with what was on disk."""
    with stack.guard:
        killed_at = time.time()
        server.kill()
        time.sleep(down_s)
        server.start()
        return Fault(server.name, killed_at, time.time())
