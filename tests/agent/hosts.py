"""Runs over several hosts, each a launcher of its own on loopback, as if on machines of their own."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from agent import control
from tests.agent.launch import EXAMPLE, ROOT, Outcome, environment, read
from tests.agent.zygote import Launcher


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


class Host:
    """One launcher and its processes."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path, variables: dict[str, str]) -> None:
        self.name, self._log = name, log
        log.touch()
        self.process = Launcher(arguments, folder=ROOT, environment=variables, output=log)

    @property
    def output(self) -> str:
        return self._log.read_text()

    def workers(self) -> list[int]:
        """Live processes that this launcher has started, without the coordinator."""
        return [child for child in self._children() if b"coordinator" not in _command(child)]

    def coordinator(self) -> int:
        """The coordinator beside this launcher."""
        return next(child for child in self._children() if b"coordinator" in _command(child))

    def _children(self) -> list[int]:
        pid = self.process.pid
        try:
            return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            return []  # it has ended

    def signal_all(self, number: int) -> list[int]:
        """Signal the launcher and all its workers, as when the whole host is lost. Returns the workers."""
        workers = self.workers()
        for pid in (self.process.pid, *workers):
            os.kill(pid, number)
        return workers

    def end(self) -> None:
        """End whatever still runs of it."""
        for pid in (self.process.pid, *self.workers()):
            try:
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b"coordinator"  # it has ended and need not be looked at


class Hosts:
    """A run whose first host is `node-0`. Ends everything at the end of the `with` block."""

    def __init__(
        self,
        folder: Path,
        *,
        hosts: int = 1,
        workers: int = 2,
        spares: int = 0,
        steps: int = 60,
        pause: float = 0.05,
        options: tuple[str, ...] = (),
        script: Path = EXAMPLE,
        faults: str = "",
        variables: dict[str, str] | None = None,
        first_options: tuple[str, ...] = (),
        host: str = "127.0.0.1",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.state = folder, folder / "state"
        self.port = free_port()
        self.endpoint = f"{host}:{self.port}"
        self.secret = secrets.token_hex(16)
        self.variables = environment(faults) | {"YOCO_SECRET": self.secret} | (variables or {})
        self.variables["YOCO_FAULTS_DIR"] = str(self.state)
        self._nnodes, self._options = hosts, options
        self._workers, self._script = workers, script
        self._arguments = ["--steps", str(steps), "--out", str(folder / "result.json"), "--pause", str(pause)]
        self.hosts: list[Host] = []
        self.run_host(0, spares, "--state-dir", str(self.state), "--run-id", folder.name, *first_options)

    def __enter__(self) -> "Hosts":
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            host.end()

    def start(self, name: str, *arguments: str, variables: dict[str, str] | None = None) -> Host:
        """`python -m agent` with these arguments as another host."""
        log = self.folder / f"{name}-{len(self.hosts)}.log"
        self.hosts.append(Host(name, arguments, log, self.variables | (variables or {})))
        return self.hosts[-1]

    def run_host(self, rank: int, spares: int, *options: str, endpoint: str | None = None) -> Host:
        """`agent run` with a node rank."""
        line = ["run", "--nnodes", str(self._nnodes), "--node-rank", str(rank), "--node", f"node-{rank}"]
        line += ["--rdzv-endpoint", endpoint or self.endpoint, "--workers", str(self._workers)]
        line += ["--spares", str(spares), *self._options, *options, str(self._script), *self._arguments]
        return self.start(f"node-{rank}", *line)

    def join(
        self,
        name: str,
        spares: int,
        *options: str,
        endpoint: str | None = None,
        variables: dict[str, str] | None = None,
    ) -> Host:
        """`agent join`."""
        line = ["--rdzv-endpoint", endpoint or self.endpoint, "--node", name, "--spares", str(spares), *options]
        return self.start(name, "join", *line, variables=variables)

    @property
    def output(self) -> str:
        return "\n".join(f"--- {host.name}\n{host.output}" for host in self.hosts)

    def wait_until(self, text: str, host: Host | None = None, timeout: float = 60) -> None:
        """Wait for a line of output."""
        deadline = time.monotonic() + timeout
        while text not in (host.output if host else self.output):
            assert time.monotonic() < deadline, f"{text!r} did not come; output:\n{self.output}"
            time.sleep(0.02)

    def wait_for_step(self, step: int, timeout: float = 60) -> None:
        """Wait until a step is committed, as the coordinator's heartbeat would tell."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                if control.ask(self.state, {"type": "status"})["committed"] >= step:
                    return
            except (control.NoSuchRun, OSError):
                pass
            assert time.monotonic() < deadline, f"step {step} did not come; output:\n{self.output}"
            time.sleep(0.05)

    def finish(self, timeout: float = 120) -> Outcome:
        """Wait for the first host's end. A run that does not end fails the test."""
        try:
            status = self.hosts[0].process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run hangs; its output:\n{self.output}") from None
        for host in self.hosts[1:]:  # their ranks write results of their own; one that was frozen or cut off does not
            with contextlib.suppress(subprocess.TimeoutExpired):
                host.process.wait(5)
        return read(self.folder, status, self.output)
