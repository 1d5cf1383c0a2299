"""Worker processes: starting them, and seeing at once when one ends or freezes.

Two ways to start. `spawn` runs a fresh interpreter for each worker. `fork` imports torch once in the launcher
and forks, which starts N workers in the time of one and shares their code pages; it must happen before the
launcher has threads and is not for machines with GPUs, whose drivers dislike it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

_PF_EXITING = 0x4
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Child(Protocol):
    """What the launcher needs of a child process; `subprocess.Popen` has it."""

    pid: int

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...

    def terminate(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


def spawn(command: Sequence[str], environment: Mapping[str, str]) -> Child:
    """A fresh interpreter that runs `command` and dies with this process."""
    parent = os.getpid()
    return subprocess.Popen(  # only prctl between fork and exec
        [sys.executable, "-u", *command], env=environment, preexec_fn=lambda: _die_with(parent)
    )


def preload() -> None:
    """Import what every worker needs, before forking."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    # torch imports the second one with the first optimizer, which takes as long as torch's core.
    for name in ("agent.api", "torch._dynamo"):
        importlib.import_module(name)
    # What is imported stays; the collector would only copy its pages into every worker.
    gc.collect()
    gc.freeze()


def fork(command: Sequence[str], environment: Mapping[str, str], inherited: Sequence[int]) -> Child:
    """A copy of this process that runs `command` as its main script. `inherited` descriptors are closed in it."""
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return _Forked(pid)
    status = 1
    try:
        _die_with(parent)
        for descriptor in inherited:
            os.close(descriptor)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(environment)
        status = _run_script(list(command))
    finally:
        # Neither the launcher's clean-up nor the destructors of torch's threads belong to this process.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run_script(command: list[str]) -> int:
    sys.argv = command
    sys.path[0] = str(Path(command[0]).resolve().parent)
    try:
        runpy.run_path(command[0], run_name="__main__")
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


class _Forked:
    """A forked child, with the methods of `Child`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            time.sleep(0.005)
        return status


def _die_with(parent: int) -> None:
    """A worker that nobody watches must not go on writing."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


class Watched:
    """One worker process as its launcher sees it."""

    def __init__(self, worker: str, rank: int | None, child: Child, place: int) -> None:
        self.worker, self.rank, self.child, self.place = worker, rank, child, place
        self.gone = False
        """Nothing of it runs any more: the kernel is ending it or has ended it."""
        self.frozen = False
        self.status_told = False
        """The coordinator knows how it ended: the exit status comes later than the news of its end."""
        self.seen_alive = time.monotonic()
        self._stat: int | None = None

    def look(self) -> str | None:
        """What is new about it: `gone`, `frozen`, or nothing."""
        if self.gone:
            return None
        state, exiting = self._state()
        if exiting or state in ("Z", "X", ""):
            self.gone = True
            if self._stat is not None:
                os.close(self._stat)
            return "gone"
        if state == "T":  # but not "t", a debugger's stop
            fresh, self.frozen = not self.frozen, True
            return "frozen" if fresh else None
        self.frozen = False
        self.seen_alive = time.monotonic()
        return None

    def _state(self) -> tuple[str, bool]:
        """As `process_state`, from a file that stays open: a look every few milliseconds must cost next to nothing."""
        try:
            if self._stat is None:
                self._stat = os.open(f"/proc/{self.child.pid}/stat", os.O_RDONLY)
            return _parse_stat(os.pread(self._stat, 1024, 0))
        except (FileNotFoundError, ProcessLookupError):
            return "", True

    def fence(self, seconds: float) -> bool:
        """SIGKILL, and wait until the kernel is ending it: from then on it runs no code."""
        self.child.kill()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            state, exiting = process_state(self.child.pid)
            if exiting or state in ("", "Z", "X"):
                return True
            time.sleep(0.001)
        return False


def process_state(pid: int) -> tuple[str, bool]:
    """The state letter of a process (empty if there is none), and whether the kernel is ending it."""
    try:
        return _parse_stat(Path(f"/proc/{pid}/stat").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return "", True


def _parse_stat(text: bytes) -> tuple[str, bool]:
    fields = text.rsplit(b")", 1)[1].split(None, 7)
    return fields[0].decode(), bool(int(fields[6]) & _PF_EXITING)


def describe_exit(status: int | None) -> str:
    """An exit status as a person would say it."""
    if status is None:
        return "ended (status not known yet)"
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"


def has_gpus() -> bool:
    """Whether this machine has NVIDIA or AMD GPUs, seen without initialising a driver."""
    return Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()
