"""The launcher on one host: it starts the workers, sees at once when one ends or freezes, and ends them.

It polls `/proc/PID/stat` because the kernel tears down a process's memory before it closes its sockets: with
4 GiB resident the flag PF_EXITING shows after 1 to 3 ms, the closed connection after 300, SIGCHLD after 1000.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.settings import SECRET_VARIABLE, Limits, WorkerSettings
from agent.wire import Address, Link, Message, dial, format_address

POLL_SECONDS = 0.005
_PACKAGE_PARENT = str(Path(__file__).resolve().parent.parent)
_PF_EXITING = 0x4
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Script:
    """What every worker runs, and its place in the job."""

    command: Sequence[str]
    run_id: str
    node: str
    host: str
    coordinator: Address
    secret: str
    world_size: int
    local_workers: int
    first_rank: int
    streams: int
    limits: Limits
    master_port: int


class Process:
    """One worker process."""

    def __init__(self, worker: str, rank: int | None, popen: subprocess.Popen[bytes]) -> None:
        self.worker, self.rank, self.popen = worker, rank, popen
        self.gone = False
        """Nothing of it runs any more: it exits, is a zombie, or was reaped."""
        self.frozen = False
        self.status_told = False
        """The coordinator knows how it ended: the exit status comes later than the news of its end."""
        self.seen_alive = time.monotonic()

    def look(self) -> str | None:
        """What is new about it: `gone`, `frozen`, or nothing."""
        if self.gone:
            return None
        state, exiting = process_state(self.popen.pid)
        if exiting or state in ("Z", "X", ""):
            self.gone = True
            return "gone"
        if state in ("T", "t"):
            if not self.frozen:
                self.frozen = True
                return "frozen"
            return None
        self.frozen = False
        self.seen_alive = time.monotonic()
        return None


def process_state(pid: int) -> tuple[str, bool]:
    """The state letter of a process (empty if there is none), and whether the kernel is ending it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return "", True
    return fields[0].decode(), bool(int(fields[6]) & _PF_EXITING)


class NodeAgent:
    """Runs the workers of this host until the coordinator says that the run is over."""

    def __init__(self, script: Script, spares: int) -> None:
        self._script = script
        self._spares = spares
        self._processes: dict[str, Process] = {}
        self._link: Link | None = None
        self._ended: str | None = None
        self._over = threading.Event()

    def run(self) -> int:
        """Start the workers and stay until the run is over. Returns the exit status of the run."""
        script = self._script
        for index in range(script.local_workers):
            self._start(f"{script.node}-w{index}", script.first_rank + index, index)
        for index in range(self._spares):
            self._start(f"{script.node}-s{index}", None, script.local_workers + index)
        self._connect()
        threading.Thread(target=self._listen, name="agent-node", daemon=True).start()
        try:
            self._watch()
        finally:
            self._end_all()
        return self._status()

    def _start(self, worker: str, rank: int | None, local_rank: int) -> None:
        script = self._script
        settings = WorkerSettings(
            worker=worker,
            run_id=script.run_id,
            node=script.node,
            host=script.host,
            coordinator=format_address(script.coordinator),
            rank=-1 if rank is None else rank,
            world_size=script.world_size,
            streams=script.streams,
            limits=script.limits,
        )
        environment = {
            "OMP_NUM_THREADS": "1",
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [_PACKAGE_PARENT, os.environ.get("PYTHONPATH")])),
            **settings.to_environment(),
            SECRET_VARIABLE: script.secret,
            "RANK": str(settings.rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(script.world_size),
            "LOCAL_WORLD_SIZE": str(script.local_workers),
            "GROUP_RANK": str(script.first_rank // max(script.local_workers, 1)),
            "MASTER_ADDR": script.coordinator[0],
            "MASTER_PORT": str(script.master_port),
            "TORCHELASTIC_RUN_ID": script.run_id,
            "TORCHELASTIC_RESTART_COUNT": "0",
        }
        parent = os.getpid()

        def die_with_parent() -> None:
            # A worker that nobody watches must not go on writing.
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        popen = subprocess.Popen(  # noqa: PLW1509 (only prctl between fork and exec)
            [sys.executable, "-u", *script.command], env=environment, preexec_fn=die_with_parent
        )
        self._processes[worker] = Process(worker, rank, popen)

    # The coordinator ---------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Introduce this host. Raises OSError if the coordinator stays away."""
        deadline = time.monotonic() + self._script.limits.coordinator
        while True:
            try:
                link = Link(dial(self._script.coordinator, self._script.secret.encode()))
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        workers = {
            process.worker: {"rank": process.rank, "pid": process.popen.pid}
            for process in self._processes.values()
        }
        link.send({"type": "node", "node": self._script.node, "workers": workers})
        self._link = link
        for process in self._processes.values():
            if process.gone:
                self._tell_exit(process)

    def _listen(self) -> None:
        while not self._over.is_set():
            try:
                assert self._link is not None
                self._obey(self._link.receive())
            except OSError:
                if self._over.is_set():
                    return
                try:
                    self._connect()
                except OSError as error:
                    self._ended = f"the coordinator is unreachable: {error}"
                    self._over.set()

    def _obey(self, message: Message) -> None:
        match message["type"]:
            case "fence":
                process = self._processes.get(message["worker"])
                if process is not None:
                    self._fence(process)
                self._tell({"type": "fenced", "worker": message["worker"]})
            case "abandon":
                self._ended = "the run was abandoned"
                self._over.set()
            case "end":
                self._over.set()

    def _fence(self, process: Process) -> None:
        """SIGKILL, and wait until the kernel is ending it: from then on it runs no code."""
        process.popen.kill()
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            state, exiting = process_state(process.popen.pid)
            if exiting or state in ("", "Z", "X"):
                return
            time.sleep(0.001)

    def _tell(self, message: Message) -> None:
        link = self._link
        if link is not None:
            try:
                link.send(message)
            except OSError:
                return  # the listening thread reconnects and tells again what matters

    # The workers -------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Report what happens to the workers until the run is over and all of them have ended."""
        while True:
            for process in list(self._processes.values()):
                news = process.look()
                if news == "gone":
                    self._tell_exit(process)
                if process.gone and not process.status_told and process.popen.poll() is not None:
                    process.status_told = True
                    how = _describe(process.popen.returncode)
                    self._tell({"type": "status", "worker": process.worker, "how": how})
                elif news == "frozen":
                    self._tell_loss(process, "hang", "stopped by a signal (state T)", None)
            if self._over.is_set() and (self._ended is not None or self._all_gone()):
                return
            time.sleep(POLL_SECONDS)

    def _all_gone(self) -> bool:
        return all(process.gone for process in self._processes.values())

    def _tell_exit(self, process: Process) -> None:
        status = process.popen.poll()
        self._tell_loss(process, "process_exit", _describe(status), status)

    def _tell_loss(self, process: Process, signal_name: str, how: str, status: int | None) -> None:
        self._tell(
            {
                "type": "exited",
                "worker": process.worker,
                "signal": signal_name,
                "how": how,
                "detector": "proc_stat",
                "status": status,
                "since_alive": time.monotonic() - process.seen_alive,
            }
        )

    def _end_all(self) -> None:
        """SIGTERM, and SIGKILL for what is left after two seconds."""
        alive = [process.popen for process in self._processes.values() if process.popen.poll() is None]
        for popen in alive:
            popen.terminate()
        deadline = time.monotonic() + 2.0
        for popen in alive:
            try:
                popen.wait(max(deadline - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                popen.kill()
                popen.wait()

    def _status(self) -> int:
        """0 if the run ended well; lost workers that were replaced do not count."""
        return 0 if self._ended is None else 1


def _describe(status: int | None) -> str:
    if status is None:
        return "ended (status not known yet)"
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"
