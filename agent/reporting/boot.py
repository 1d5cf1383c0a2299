"""One boot's directory in the spool: its segments of reports and the answers the service gave.

A *boot* is one opening of the spool by one process. Its directory holds `NNNNNNNN.segment` files (reports,
last heartbeats), the file `answered`, and `lock`, held with flock(2) for as long as the owner lives. When the
lock is free the owner is dead, and any process may take the lock and send what is left.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any

from agent.reporting.framing import Frame, FrameKind, damaged_bytes, frame_encode, frames_read

log = logging.getLogger("agent.reporting")

ACKNOWLEDGING = frozenset({"created", "duplicate", "conflict", "invalid"})
"""Answers after which a report need not be sent again."""


INVALID_AGAIN_S = 600.0
"""An invalid report that the service misses is tried again after so long: a clock ahead of time is right later."""


@dataclass(slots=True)
class SegmentSummary:
    """What one closed segment holds."""

    path: Path
    size: int
    reports: set[int] = field(default_factory=set)
    runs_ended: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record's bytes are: in a file, or only in memory while the disk refuses them."""

    path: Path | None
    offset: int = 0
    size: int = 0
    body: bytes = b""

    def read(self) -> bytes:
        """The record's bytes. Raises OSError when the file is gone."""
        if self.path is None:
            return self.body
        with self.path.open("rb") as file:
            file.seek(self.offset)
            body = file.read(self.size)
        if len(body) != self.size:
            raise OSError(f"{self.path} is shorter than it was")
        return body


def boot_lock(directory: Path) -> int | None:
    """Take the boot's lock; `None` while another process holds it or when the directory is gone."""
    try:
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


class Boot:
    """What one boot wrote, which of it the service has answered, and which of it must still be sent.

    Safe for use by several threads. `Boot.read` takes what is whole and notes what is not.
    """

    def __init__(self, directory: Path, *, lock_descriptor: int | None) -> None:
        self.directory = directory
        self.boot_id = directory.name
        self.agent_id: str | None = None
        self.guard = RLock()
        self.reports: dict[int, Place] = {}
        self.pending: set[int] = set()
        self.short: set[int] = set()
        self.answers: dict[int, dict[str, Any]] = {}
        self._invalid_until: dict[int, float] = {}
        self.runs_ended: dict[int, Place] = {}
        self.runs_ended_pending: set[int] = set()
        self.segments: list[SegmentSummary] = []
        self.damaged = 0
        self._lock_descriptor = lock_descriptor
        self._answered: int | None = None
        _boots.add(self)

    @staticmethod
    def read(directory: Path, *, lock_descriptor: int | None) -> Boot:
        """The boot in `directory`. With the lock, torn tails are cut. Raises OSError."""
        boot = Boot(directory, lock_descriptor=lock_descriptor)
        for path in sorted(directory.glob("*.segment")):
            boot._segment_read(path)
        boot._answers_read()
        return boot

    # Reading what is there.

    def _segment_read(self, path: Path) -> None:
        content = path.read_bytes()
        summary = SegmentSummary(path=path, size=len(content.rstrip(b"\0")))
        end = 0
        for frame in frames_read(content):
            self._frame_take(frame, summary)
            end = frame.end
        damaged = damaged_bytes(content)
        if damaged:
            self.damaged += damaged
            log.warning("%s: %d bytes are not whole records (a torn write); skipped.", path, damaged)
        summary.size = end
        self.segments.append(summary)
        if self._lock_descriptor is not None and end < len(content):
            os.truncate(path, end)

    def _frame_take(self, frame: Frame, summary: SegmentSummary) -> None:
        place = Place(path=summary.path, offset=frame.offset, size=len(frame.body))
        match frame.kind:
            case FrameKind.HEADER:
                self.agent_id = json.loads(frame.body).get("agent_id")
            case FrameKind.REPORT:
                self.reports[frame.number] = place
                self.short.discard(frame.number)
                summary.reports.add(frame.number)
                self.pending.add(frame.number)
            case FrameKind.SHORT_REPORT:
                summary.reports.add(frame.number)
                if frame.number not in self.reports:
                    self.reports[frame.number] = place
                    self.short.add(frame.number)
                    self.pending.add(frame.number)
            case FrameKind.RUN_ENDED:
                self.runs_ended[frame.number] = place
                summary.runs_ended.add(frame.number)
                self.runs_ended_pending.add(frame.number)
            case _:
                pass

    def _answers_read(self) -> None:
        try:
            content = (self.directory / "answered").read_bytes()
        except FileNotFoundError:
            return
        for frame in frames_read(content):
            if frame.kind is FrameKind.REPORT_ANSWERED:
                self.answers[frame.number] = json.loads(frame.body)
                self.pending.discard(frame.number)
            elif frame.kind is FrameKind.RUN_ENDED_ANSWERED:
                self.runs_ended_pending.discard(frame.number)

    # What the sender does.

    def done(self) -> bool:
        """True when nothing is left to send."""
        with self.guard:
            return not self.pending and not self.runs_ended_pending

    def report_answered(self, seq: int, status: str, reason: str | None = None) -> None:
        """Note the service's answer; the report is not sent again unless the service asks for it."""
        with self.guard:
            self.pending.discard(seq)
            if self.reports[seq].path is None:
                del self.reports[seq]
            answer = {"status": status} if reason is None else {"status": status, "reason": reason}
            self.answers[seq] = answer
            if status == "invalid":
                self._invalid_until[seq] = time.monotonic() + INVALID_AGAIN_S
            self._answer_write(FrameKind.REPORT_ANSWERED, seq, json.dumps(answer).encode())

    def run_ended_answered(self, number: int) -> None:
        """Note that the service has taken a last heartbeat."""
        with self.guard:
            self.runs_ended_pending.discard(number)
            self._answer_write(FrameKind.RUN_ENDED_ANSWERED, number, b"")

    def _answer_write(self, kind: FrameKind, number: int, body: bytes) -> None:
        # Not synced, and a failure is no loss: at worst the report is sent again and is a duplicate.
        if self._lock_descriptor is None:
            return
        try:
            if self._answered is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._answered = os.open(self.directory / "answered", flags, 0o600)
            os.write(self._answered, frame_encode(kind, number, body))
        except OSError as error:
            log.debug("%s: an answer could not be noted: %s", self.directory, error)

    def reports_wanted(self, ranges: Iterable[tuple[int, int]]) -> tuple[int, int]:
        """Send again what the service says is missing: (reports queued again, reports no longer held)."""
        with self.guard:
            again = gone = 0
            now = time.monotonic()
            invalid = {seq for seq, until in self._invalid_until.items() if now < until}
            for first, last in ranges:
                held = {seq for seq in self.reports if first <= seq <= last}
                gone += max(0, last - first + 1 - len(held))
                fresh = held - self.pending - invalid
                again += len(fresh)
                self.pending |= fresh
            return again, gone

    def segments_drop(self, *, keep_bytes: int) -> None:
        """Delete the oldest closed segments whose every record is answered, down to `keep_bytes` of those."""
        with self.guard:
            answered = [
                segment
                for segment in self.segments
                if not segment.reports & self.pending and not segment.runs_ended & self.runs_ended_pending
            ]
            excess = sum(segment.size for segment in answered) - keep_bytes
            for segment in answered:
                if excess <= 0:
                    return
                segment.path.unlink(missing_ok=True)
                self.segments.remove(segment)
                excess -= segment.size
                for seq in segment.reports:
                    place = self.reports.get(seq)
                    if place is not None and place.path == segment.path:
                        del self.reports[seq]

    def remove(self) -> None:
        """Delete the whole boot. Only for a dead boot whose lock is held."""
        self.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def close(self) -> None:
        """Release the lock and the files; what is pending stays for whoever takes the lock next."""
        with self.guard:
            if self._lock_descriptor is not None:
                fcntl.flock(self._lock_descriptor, fcntl.LOCK_UN)
            self.descriptors_leave()

    def descriptors_leave(self) -> None:
        """Close the descriptors. A forked child does this too: else it would hold a dead agent's lock."""
        for descriptor in (self._answered, self._lock_descriptor):
            if descriptor is not None:
                os.close(descriptor)
        self._answered = self._lock_descriptor = None


_boots: weakref.WeakSet[Boot] = weakref.WeakSet()


def _forked() -> None:
    for boot in _boots:
        boot.descriptors_leave()


os.register_at_fork(after_in_child=_forked)
