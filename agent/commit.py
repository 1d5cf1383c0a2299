"""The commit point: when a step counts, and what a worker may still do once its epoch has ended.

`version` is the number of optimizer steps applied. A step commits at the *gate*, just before the optimizer
runs, after every collective of the step has succeeded here, the last of which is the journal's all-gather.
If it succeeded anywhere, then every worker had entered it, hence holds all reduced gradients. So survivors
differ by at most one version, and a worker that is behind (*in doubt*: it entered the journal exchange but
did not see it succeed) catches up by applying its own gradients. State on a survivor is never overwritten
and never rolled back; only a spare receives state.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """Where the training thread is. Parameters can change only in `APPLY`."""

    INIT = "init"
    COMPUTE = "compute"
    APPLY = "apply"
    BOUNDARY = "boundary"
    PARKED = "parked"


class WaitTooLong(RuntimeError):
    """A bounded wait ended; the message says for what, and what to look at."""


@dataclass(frozen=True)
class Standing:
    """What a worker reports when its epoch ends. Final: nothing commits until the coordinator decides."""

    version: int
    prepared: bool
    phase: Phase


class CommitPoint:
    """Shared by the training thread, which moves through steps, and the control thread, which stops it."""

    def __init__(self, on_commit: Callable[[], None]) -> None:
        """`on_commit` runs with each commit, so that what belongs to the version changes with it."""
        self._on_commit = on_commit
        self._changed = threading.Condition()
        self._version = 0
        self._phase = Phase.INIT
        self._prepared = False
        self._verdict: bool | None = None
        self._stopped = True
        self._epoch = 0
        self._resumed = 0
        self._pause_at: int | None = None

    @property
    def version(self) -> int:
        return self._version

    @property
    def stopped(self) -> bool:
        return self._stopped

    def standing(self) -> Standing:
        with self._changed:
            return Standing(self._version, self._prepared, self._phase)

    # Training thread ---------------------------------------------------------------------------------

    def begin(self, epoch: int) -> bool:
        """Enter a step in `epoch`. False if it has ended or a pause is due: park instead."""
        with self._changed:
            if (
                self._stopped
                or self._resumed != epoch
                or (self._pause_at is not None and self._version >= self._pause_at)
            ):
                return False
            self._phase, self._prepared, self._verdict = Phase.COMPUTE, False, None
            return True

    def prepare(self) -> bool:
        """About to enter the journal exchange with all gradients reduced. False: the step is off."""
        with self._changed:
            if self._stopped:
                return False
            self._prepared = True
            return True

    def decide(self, exchanged: bool, seconds: float) -> bool:
        """Whether the prepared step commits: at once, or as the coordinator decides if in doubt.

        Raises WaitTooLong if no decision comes within `seconds`.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            if exchanged and not self._stopped:
                self._commit()
                return True
            while self._verdict is None:
                if not self._changed.wait(max(deadline - time.monotonic(), 0)) and self._verdict is None:
                    raise WaitTooLong(
                        f"no decision on step {self._version + 1} came within {seconds:.0f} s after its "
                        "group broke; the coordinator is unreachable"
                    )
            return self._verdict

    def refuse(self) -> bool:
        """The prepared step must not commit, here and on every other worker. True, unless that was decided already."""
        with self._changed:
            if self._verdict is not None:
                return not self._verdict
            self._prepared = False
            return True

    def _commit(self) -> None:
        self._version += 1
        self._on_commit()
        self._prepared = False
        self._phase = Phase.APPLY
        self._changed.notify_all()

    def reach_boundary(self) -> None:
        """The applied step is complete: the state may be served again."""
        with self._changed:
            self._phase = Phase.BOUNDARY
            self._changed.notify_all()

    def park(self, seconds: float | None, seen: int) -> int:
        """Wait for an epoch later than `seen` to be resumed and return it.

        `seconds` bounds the wait (None for a spare, which waits for as long as the run lasts).
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            self._phase = Phase.PARKED
            self._changed.notify_all()
            while self._resumed <= seen or self._stopped:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise WaitTooLong(
                        f"training did not resume within {seconds:.0f} s; "
                        "see the coordinator's messages above for what is missing"
                    )
                self._changed.wait(left)
            self._phase = Phase.BOUNDARY
            return self._resumed

    # Control thread ----------------------------------------------------------------------------------

    def stop(self, epoch: int) -> Standing:
        """End the current epoch in favour of `epoch`. What is returned stays true until a decision."""
        with self._changed:
            self._epoch = max(epoch, self._epoch)
            self._stopped = True
            return Standing(self._version, self._prepared, self._phase)

    def rule(self, commit: bool) -> None:
        """The coordinator's decision for a worker in doubt."""
        with self._changed:
            if not self._prepared or self._verdict is not None:
                return
            self._verdict = commit
            if commit:
                self._commit()
            self._prepared = False
            self._changed.notify_all()

    def adopt(self, version: int) -> None:
        """A spare now holds the state of `version`."""
        with self._changed:
            self._version = version

    def resume(self, epoch: int) -> None:
        """Let the training thread go on in `epoch`, unless a later one is being prepared."""
        with self._changed:
            if epoch < self._epoch:
                return
            self._stopped, self._pause_at = False, None
            self._resumed = epoch
            self._changed.notify_all()

    def pause_at(self, version: int | None) -> None:
        """Park before the step that follows `version`, for a planned move."""
        with self._changed:
            self._pause_at = version

    def wait_servable(self, version: int, seconds: float) -> bool:
        """Wait until the state of `version` is complete and cannot change in this epoch."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._phase is Phase.APPLY or self._version != version:
                left = deadline - time.monotonic()
                if left <= 0 or self._version > version:
                    return False
                self._changed.wait(left)
            return True
