"""Start a throw-away PostgreSQL and Redis, run a command against them, stop them.

    .venv/bin/python -m tools.services [--postgres-port N] [--redis-port N] [--durable] -- COMMAND...

The command finds them in `TEST_DATABASE_URL` and `TEST_REDIS_URL`; its exit status is passed on. Both
listen on 127.0.0.1 only, on free ports unless told otherwise, with passwords made for this run, and keep
their data in a temporary directory that goes with them. Tests use the classes directly to stop, kill and
restart servers.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Self

import psycopg
import redis

HOST = "127.0.0.1"
ROOM_NEEDED = 2 * 1024**3  # bytes; a cluster with some test databases takes about a tenth


class ServiceError(Exception):
    """A server could not be started. The message is one sentence saying what and what to do."""


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def port_in_use(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
        return False


class Server:
    """One server process of ours, which can be stopped, killed and started again on the same port.

    It counts as ready once its port of 127.0.0.1 answers or, without a port, once it wrote `ready_text`.
    Output goes to `log`. Only the process started here is ever signalled.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        directory: Path,
        port: int | None = None,
        ready_text: str = "",
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
        cwd: Path | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        start_seconds: float = 60.0,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.directory = directory
        self.port = port
        self.ready_text = ready_text
        self.environment = dict(os.environ if environment is None else environment)
        self.user = user
        self.cwd = directory if user else cwd
        self.stop_signal = stop_signal
        self.start_seconds = start_seconds
        self.log = directory / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def ready(self) -> bool:
        """Say whether the server does its work already."""
        if self.port is None:
            return self.ready_text in self._written()
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex((HOST, self.port)) == 0

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the server and wait until it is ready; raise `ServiceError` when it is not in time."""
        if self.running():
            return
        deadline = time.monotonic() + self.start_seconds
        if self.port is not None:
            self._wait_for_port(self.port)
        self._launch()
        while not self.ready():
            if not self.running() and not self._relaunch():
                status = self.process.returncode if self.process else None
                raise ServiceError(f"{self.name} ended with status {status}: {self.last_words()}")
            if time.monotonic() > deadline:
                self.kill()
                raise ServiceError(f"{self.name} was not ready in {self.start_seconds:g} s: {self.last_words()}")
            time.sleep(0.05)

    def stop(self, seconds: float = 30.0) -> None:
        """End the server in good order; kill it if that takes more than `seconds`."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(self.stop_signal)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill the server and its children with SIGKILL, as a failing machine would.

        PostgreSQL's backends have sessions of their own and would see only later that their parent is gone: one could
        still commit.
        """
        if self.process is None or self.process.poll() is not None:
            return
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.killpg(pid, signal.SIGKILL)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        self.process.wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    def last_words(self) -> str:
        """Return the end of the log on one line."""
        return " | ".join(self._written().strip().splitlines()[-3:]) or "it wrote nothing"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _launch(self) -> None:
        # A session of its own: Ctrl-C at a terminal must reach the tests, not their database.
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.cwd,
                start_new_session=True,
                user=self.user,
                group=_group(self.user),
                extra_groups=[] if self.user else None,
            )

    def _written(self) -> str:
        """What this run of the server wrote, without earlier ones."""
        return self.log.read_bytes()[self._log_start :].decode(errors="replace") if self.process else ""

    def _relaunch(self) -> bool:
        """Say whether a server that ended while starting was started again."""
        return False

    def _wait_for_port(self, port: int) -> None:
        # A server just killed may hold its port for a moment longer.
        patience = time.monotonic() + (5.0 if self.process else 0.0)
        while port_in_use(port):
            if time.monotonic() > patience:
                raise ServiceError(
                    f"{self.name} cannot start: port {port} of {HOST} is in use; "
                    "name another, or none to get a free one."
                )
            time.sleep(0.05)


class Postgres(Server):
    """A PostgreSQL cluster made for this run, with a role `yoco` that may create databases, no superuser.

    `fsync` is off unless `durable`: a test machine that loses power may lose the cluster. Commits stay
    synchronous, so a *killed* server keeps every commit that it acknowledged.
    """

    def __init__(self, directory: Path, *, port: int | None = None, durable: bool = False) -> None:
        self.binaries = find_postgres()
        self.data = directory / "postgres"
        self.password = secrets.token_urlsafe(18)
        port = port or free_port()
        settings = {
            "listen_addresses": HOST,
            "port": str(port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "fsync": "on" if durable else "off",
            "full_page_writes": "on" if durable else "off",
        }
        command = [str(self.binaries / "postgres"), "-D", str(self.data)]
        for key, value in settings.items():
            command += ["-c", f"{key}={value}"]
        super().__init__(
            "postgres",
            command,
            directory=directory,
            port=port,
            environment=_plain_environment(),
            user=unprivileged_user(),
            stop_signal=signal.SIGINT,  # "fast" shutdown: does not wait for clients to leave
        )

    @property
    def url(self) -> str:
        """The URL of database `yoco`, as the role `yoco`."""
        return f"postgresql://yoco:{self.password}@{HOST}:{self.port}/yoco"

    def start(self) -> None:
        fresh = not self.data.exists()
        if fresh:
            self._create_cluster()
        super().start()
        if fresh:
            with self._connect() as connection:
                connection.execute(f"CREATE ROLE yoco LOGIN CREATEDB PASSWORD '{self.password}'")
                connection.execute("CREATE DATABASE yoco OWNER yoco")

    def ready(self) -> bool:
        try:
            self._connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def _connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(
            host=HOST, port=self.port, user="postgres", password=self.password, dbname="postgres",
            autocommit=True, connect_timeout=5,
        )  # fmt: skip

    def _relaunch(self) -> bool:
        # After a kill, orphaned backends hold the shared memory for a moment; PostgreSQL waits for no one.
        if "shared memory block" not in self.last_words():
            return False
        time.sleep(0.1)
        self._launch()
        return True

    def _create_cluster(self) -> None:
        password_file = self.directory / "initdb-password"
        password_file.write_text(self.password)
        password_file.chmod(0o600)
        if self.user:
            shutil.chown(password_file, self.user)
        command = [
            str(self.binaries / "initdb"), "--pgdata", str(self.data), "--no-sync",
            "--username=postgres", "--auth=scram-sha-256", f"--pwfile={password_file}",
            "--encoding=UTF8", "--locale=C.UTF-8",
        ]  # fmt: skip
        done = subprocess.run(
            command,
            env=self.environment,
            cwd=self.directory,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            user=self.user,
            group=_group(self.user),
            extra_groups=[] if self.user else None,
        )
        password_file.unlink()
        if done.returncode:
            raise ServiceError(f"initdb failed in {self.directory}: {done.stderr.strip().splitlines()[-1]}")


class Redis(Server):
    """A Redis without persistence: killed, it forgets everything, which the service must survive."""

    def __init__(self, directory: Path, *, port: int | None = None) -> None:
        binary = shutil.which("redis-server")
        if binary is None:
            raise ServiceError("redis-server is missing: install it (Debian: apt-get install redis-server).")
        self.password = secrets.token_urlsafe(18)
        user = unprivileged_user()
        configuration = directory / "redis.conf"
        configuration.write_text(
            f"bind {HOST}\nport {port or (port := free_port())}\nrequirepass {self.password}\n"
            f'save ""\nappendonly no\ndir {directory}\n'
        )
        configuration.chmod(0o600)
        if user:
            shutil.chown(configuration, user)
        super().__init__(
            "redis",
            [binary, str(configuration)],
            directory=directory,
            port=port,
            environment=_plain_environment(),
            user=user,
        )

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@{HOST}:{self.port}/0"

    def ready(self) -> bool:
        try:
            with redis.Redis.from_url(self.url, socket_timeout=2) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


def find_postgres() -> Path:
    """Return the directory that holds `initdb` and `postgres`, the newest version that is installed."""
    versions = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if versions:
        return max(versions, key=lambda path: int(path.parent.name))
    on_path = shutil.which("initdb")
    if on_path is None:
        raise ServiceError("PostgreSQL is missing: install 15 or newer (Debian: apt-get install postgresql).")
    return Path(on_path).resolve().parent


def unprivileged_user() -> str | None:
    """Return whom to run servers as: PostgreSQL refuses root. None where we are not root ourselves."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    for name in ("postgres", "nobody"):
        if name in names:
            return name
    raise ServiceError("PostgreSQL refuses root and there is no user postgres or nobody: use another account.")


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a new directory of the servers' user, in memory where there is room; remove it at the end."""
    shm = Path("/dev/shm")  # noqa: S108 - a private directory is made inside it
    roomy = shm.is_dir() and os.access(shm, os.W_OK) and shutil.disk_usage(shm).free > ROOM_NEEDED
    path = Path(tempfile.mkdtemp(prefix=f"yoco-{getpass.getuser()}-", dir=shm if roomy else None))
    try:
        if user := unprivileged_user():
            shutil.chown(path, user)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def postgres_and_redis(
    *, postgres_port: int | None = None, redis_port: int | None = None, durable: bool = False
) -> Iterator[tuple[Postgres, Redis]]:
    """Yield a running PostgreSQL and Redis; stop both and remove their data at the end."""
    with (
        scratch_directory() as directory,
        Postgres(directory, port=postgres_port, durable=durable) as postgres,
        Redis(directory, port=redis_port) as cache,
    ):
        yield postgres, cache


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run `command` in the foreground and return its exit status; an interrupted one ends this program.

    Ctrl-C reaches the command from the terminal; when we are told to end, it is interrupted likewise, since
    pytest tidies up after SIGINT but not after SIGTERM.
    """
    with subprocess.Popen(command, env=dict(environment)) as child:
        try:
            status = child.wait()
        except KeyboardInterrupt:
            child.wait()
            raise SystemExit(128 + signal.SIGINT) from None
        except SystemExit:
            child.send_signal(signal.SIGINT)
            try:
                child.wait(60)
            except subprocess.TimeoutExpired:
                child.kill()
            raise
    return status if status >= 0 else 128 - status


def end_on_signals() -> None:
    """Make SIGTERM and SIGHUP end this program in good order, so that it stops what it started."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    # A shell starts background jobs with SIGINT ignored, which the commands that we run would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _plain_environment() -> dict[str, str]:
    # PG* variables of the developer must not reach the cluster.
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "TZ": "UTC"}


def _group(user: str | None) -> int | None:
    return pwd.getpwnam(user).pw_gid if user else None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.services", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--postgres-port", type=int)
    parser.add_argument("--redis-port", type=int)
    parser.add_argument("--durable", action="store_true", help="fsync on, for measurements")
    parser.add_argument("command", nargs="+", help="after --, the command to run")
    options = parser.parse_args(arguments)
    end_on_signals()
    try:
        with postgres_and_redis(
            postgres_port=options.postgres_port, redis_port=options.redis_port, durable=options.durable
        ) as (postgres, cache):
            urls = {"TEST_DATABASE_URL": postgres.url, "TEST_REDIS_URL": cache.url}
            return run(options.command, os.environ | urls)
    except ServiceError as error:
        print(f"services: {error}", file=sys.stderr)
        return 2
    except FileNotFoundError as error:
        print(f"services: {error.filename} was not found; give a command after --.", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
