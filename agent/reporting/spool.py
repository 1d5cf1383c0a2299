"""The spool on disk: append a report durably, find what earlier boots left behind.

    SPOOL/boots/BOOT_ID/00000001.segment   reports, framed (framing.py); allocated ahead, 1 MiB
    SPOOL/boots/BOOT_ID/answered           what the service answered
    SPOOL/boots/BOOT_ID/lock               held while the owner lives

**Full disk.** A segment is allocated ahead, and a new one is begun when three quarters are used. If the disk
refuses it, the last quarter takes further reports, still durable; then short reports (same id and seq,
without the readings) hold the place of those that only memory has. If the process dies before the disk has
room again, the short report is sent instead, and says that it is short. Only when that room is used up too
does a report exist in memory alone; its sequence number was issued, so the service sees the gap, asks for it,
and counts it as unaccounted.

**Clock.** `seq` and ids never go backwards whatever the clock does: an id's time is the clock's, or one
millisecond after the last id where the clock stands still or has jumped back. `sent_at` is the clock as it
stood.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any, Literal
from uuid import UUID

from uuid_utils import uuid4, uuid7

from agent.reporting.boot import Boot, Place, SegmentSummary, boot_lock
from agent.reporting.framing import HEADER_BYTES, FrameKind, frame_encode, frames_read

log = logging.getLogger("agent.reporting")

SEGMENT_BYTES = 1024 * 1024
SMALL_SEGMENT_BYTES = 64 * 1024
SHORT_REPORT_SHARE = 16
"""One part in so many of a segment is kept for short reports."""

Durability = Literal["durable", "short", "memory"]


class ReportClock:
    """Milliseconds for ids: strictly rising, never below `floor_ms`."""

    def __init__(self, *, floor_ms: int, now: Callable[[], float] = time.time) -> None:
        self._last_ms = floor_ms
        self._now = now
        self._lock = Lock()

    def id_next(self) -> str:
        """A UUIDv7 greater than every one before it."""
        with self._lock:
            self._last_ms = max(int(self._now() * 1000), self._last_ms + 1)
            return str(uuid7(nanoseconds=self._last_ms * 1_000_000))


class LiveBoot(Boot):
    """The boot this process owns: a `Boot` that can be appended to.

    Opening never fails: a directory that cannot be made now is made when the disk allows it.
    """

    def __init__(self, root: Path, *, agent_id: str) -> None:
        self.root = root
        super().__init__(root / "boots" / str(uuid4()), lock_descriptor=None)
        self.agent_id = agent_id
        self.last_seq = 0
        self.complaint: str | None = None
        self._closed = False
        self._last_run_ended = 0
        self._descriptor: int | None = None
        self._size = self._allocated = 0
        self._current: SegmentSummary | None = None
        self._segments_begun = 0
        try:
            self._directory_make()
        except OSError as error:
            self._complain(error)

    def report_append(self, build: Callable[[int], dict[str, Any]]) -> Durability:
        """Issue the next `seq`, and write the report that `build(seq)` returns.

        Returns `durable` once it is on disk, `short` when only a short report is, `memory` when nothing is.
        """
        with self.guard:
            payload = build(self.last_seq + 1)
            body = payload_encode(payload)
            self.last_seq += 1
            seq = self.last_seq
            place = self._append(FrameKind.REPORT, seq, body)
            self.reports[seq] = place or Place(path=None, body=body)
            self.pending.add(seq)
            if place is not None:
                self.memory_settle()
                return "durable"
            short = payload_encode(_payload_short(payload, self.complaint))
            return "memory" if self._append(FrameKind.SHORT_REPORT, seq, short) is None else "short"

    def run_ended_append(self, heartbeat: dict[str, Any]) -> Durability:
        """Write a last heartbeat, to be sent until the service takes it."""
        with self.guard:
            body = payload_encode(heartbeat)
            self._last_run_ended += 1
            place = self._append(FrameKind.RUN_ENDED, self._last_run_ended, body)
            self.runs_ended[self._last_run_ended] = place or Place(path=None, body=body)
            self.runs_ended_pending.add(self._last_run_ended)
            return "memory" if place is None else "durable"

    def memory_settle(self) -> None:
        """Write what only memory has, now that the disk may have room again."""
        with self.guard:
            for kind, places, pending in (
                (FrameKind.REPORT, self.reports, self.pending),
                (FrameKind.RUN_ENDED, self.runs_ended, self.runs_ended_pending),
            ):
                for number in sorted(n for n in pending if places[n].path is None):
                    place = self._append(kind, number, places[number].body)
                    if place is None:
                        return
                    places[number] = place

    def close(self) -> None:
        """Cut the current segment to its content and release the boot."""
        with self.guard:
            try:
                self._segment_close()
            except OSError as error:
                log.warning("%s: %s", self.directory, error)
            super().close()

    def descriptors_leave(self) -> None:
        """Close the descriptors without a word on disk."""
        self._closed = True
        super().descriptors_leave()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, kind: FrameKind, number: int, body: bytes) -> Place | None:
        frame = frame_encode(kind, number, body)
        try:
            if self._closed:
                raise OSError("it is closed")
            if not self._room_for(len(frame), kind):
                return None
            assert self._descriptor is not None
            assert self._current is not None
            _write_all(self._descriptor, frame, self._size)
            os.fdatasync(self._descriptor)
        except OSError as error:
            # What of the frame reached the disk is unknown: leave the segment and never write to it again.
            self._complain(error)
            self._segment_abandon()
            return None
        place = Place(path=self._current.path, offset=self._size + HEADER_BYTES, size=len(body))
        self._size += len(frame)
        self._current.size = self._size
        (self._current.runs_ended if kind is FrameKind.RUN_ENDED else self._current.reports).add(number)
        return place

    def _room_for(self, size: int, kind: FrameKind) -> bool:
        if self._descriptor is not None and self._size + size <= self._allocated * 3 // 4:
            return True
        try:
            self._segment_begin(size)
        except OSError as error:
            self._complain(error)
            if self._descriptor is None:
                return False
            kept = 0 if kind is FrameKind.SHORT_REPORT else self._allocated // SHORT_REPORT_SHARE
            return self._size + size <= self._allocated - kept
        if self.complaint is not None:
            log.warning("The spool %s can be written again.", self.directory)
            self.complaint = None
        return True

    def _directory_make(self) -> None:
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        # Made aside and renamed: nobody can find it unlocked and take it for a dead one.
        newborn = self.root / f"new-{self.boot_id}"
        newborn.mkdir(exist_ok=True)
        lock_descriptor = boot_lock(newborn)
        if lock_descriptor is None:
            raise OSError(f"{newborn} cannot be locked")
        newborn.rename(self.directory)
        self._lock_descriptor = lock_descriptor
        for directory in (self.directory.parent, self.root):
            _directory_sync(directory)

    def _segment_begin(self, needed: int) -> None:
        if self._lock_descriptor is None:
            self._directory_make()
        path = self.directory / f"{self._segments_begun + 1:08d}.segment"
        header = frame_encode(FrameKind.HEADER, 0, payload_encode({"agent_id": self.agent_id}))
        for allocated in (SEGMENT_BYTES, SMALL_SEGMENT_BYTES):
            if (len(header) + needed) > allocated * 3 // 4:
                continue
            try:
                descriptor = _segment_create(path, header, allocated)
                break
            except OSError as error:
                refusal = error
        else:
            raise refusal
        self._segment_close()
        self._segments_begun += 1
        self._descriptor, self._size, self._allocated = descriptor, len(header), allocated
        self._current = SegmentSummary(path=path, size=len(header))

    def _segment_close(self) -> None:
        if self._descriptor is None or self._current is None:
            return
        self.segments.append(self._current)
        descriptor, self._descriptor = self._descriptor, None
        try:
            os.ftruncate(descriptor, self._size)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _segment_abandon(self) -> None:
        if self._descriptor is not None and self._current is not None:
            self.segments.append(self._current)
            os.close(self._descriptor)
            self._descriptor = None

    def _complain(self, error: OSError) -> None:
        sentence = error.strerror or str(error)
        if sentence != self.complaint:
            self.complaint = sentence
            log.error(
                "The spool %s cannot be extended (%s): free space or fix the disk. "
                "Reports go on from the space set aside and from memory; training is not affected.",
                self.directory,
                sentence,
            )


def payload_encode(payload: dict[str, Any]) -> bytes:
    """The JSON bytes that are stored and sent; sending them again sends the very same bytes."""
    return json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def dead_boots_adopt(root: Path, *, held: frozenset[str] = frozenset()) -> list[Boot]:
    """Lock and read every boot whose owner is dead, oldest first; `held` names boots to pass over."""
    adopted = []
    for directory in boot_directories(root):
        if directory.name in held:
            continue
        descriptor = boot_lock(directory)
        if descriptor is None:
            continue
        try:
            adopted.append(Boot.read(directory, lock_descriptor=descriptor))
        except OSError as error:
            os.close(descriptor)
            log.warning("%s cannot be read now and is tried again later: %s", directory, error)
    return adopted


def boot_directories(root: Path) -> list[Path]:
    """The boots' directories, the one changed longest ago first."""
    found = []
    try:
        for directory in (root / "boots").iterdir():
            found.append((directory.stat().st_mtime_ns, directory))
    except (FileNotFoundError, NotADirectoryError):
        pass
    return [directory for _, directory in sorted(found)]


def newest_id_ms(root: Path) -> int:
    """The time in the newest report id of the spool, in milliseconds since 1970; 0 where there is none."""
    newest = 0
    for directory in boot_directories(root):
        for path in sorted(directory.glob("*.segment"))[-1:]:
            for frame in frames_read(path.read_bytes()):
                if frame.kind is FrameKind.REPORT:
                    newest = max(newest, UUID(json.loads(frame.body)["id"]).int >> 80)
    return newest


def _payload_short(payload: dict[str, Any], complaint: str | None) -> dict[str, Any]:
    reason = f"the readings were lost with the agent: the disk refused the report ({complaint})"
    trigger = dict(payload["trigger"], detail={"report_shortened": reason})
    attempt = {"at": payload["sent_at"], "outcome": "report_shortened", "reason": reason}
    return dict(payload, trigger=trigger, attempts=[attempt])


def _segment_create(path: Path, header: bytes, allocated: int) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, allocated)
        _write_all(descriptor, header, 0)
        os.fsync(descriptor)
        _directory_sync(path.parent)
    except OSError:
        os.close(descriptor)
        path.unlink(missing_ok=True)
        raise
    return descriptor


def _write_all(descriptor: int, content: bytes, offset: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _directory_sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
