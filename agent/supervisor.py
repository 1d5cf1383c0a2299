"""Keeps a coordinator running beside the launcher of the first host: a new one takes over from the log."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence

ABANDONED = 3
"""The coordinator's exit status when the run cannot go on."""
CANNOT_START = 2
"""Its exit status when its log cannot be used: another one would fare alike."""
_FINAL = (0, ABANDONED, CANNOT_START)
_RESTARTS = 10


class CoordinatorProcess:
    """The coordinator as a child process that inherits its listening socket, so that its address stays."""

    def __init__(self, command: Sequence[str], descriptor: int) -> None:
        self._command, self._descriptor = command, descriptor
        self._restarts = 0
        self._closing = False
        self._final = threading.Event()
        self._child = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, pass_fds=[self._descriptor])

    @property
    def pid(self) -> int:
        return self._child.pid

    def watch(self) -> None:
        """Start it again whenever it dies. Begins a thread, so call it after the workers were forked."""
        threading.Thread(target=self._watch, name="agent-supervise", daemon=True).start()

    def _watch(self) -> None:
        while True:
            status = self._child.wait()
            if status in _FINAL or self._closing or self._restarts >= _RESTARTS:
                self._final.set()
                return
            self._restarts += 1
            print(f"agent: the coordinator died (status {status}); starting another", file=sys.stderr, flush=True)
            self._child = self._start()

    def ended(self) -> int | None:
        """Its final status if the run is over; None while it is not."""
        return self._child.poll() if self._final.is_set() else None

    def wait(self) -> int:
        """Its final status, when the run is over."""
        self._final.wait()
        return self._child.wait()

    def kill(self) -> None:
        """It does not answer: the next one takes over."""
        self._child.kill()

    def close(self, seconds: float) -> int:
        """Its final status (the run is over); ends it if that takes longer than `seconds`."""
        if not self._final.wait(seconds):
            self._closing = True
            self._child.kill()
            self._final.wait(5)
        return self._child.wait()
