"""How one record lies in a spool file, so that a reader can tell a whole record from half of one.

    magic 4 | length u32 | kind u8, 3 zero bytes | number u64 | checksum u64 | body

Little endian. The checksum (xxh3-64) covers length, kind, number and body. Files are allocated ahead and so
end in zeros; a reader skips what is not a whole record and goes on at the next one that is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import xxhash

MAGIC = b"\xf1YR1"
"""Not UTF-8, so that no body (JSON) can hold what looks like a frame."""
_HEAD = struct.Struct("<4sIBxxxQ")
_CHECKSUM = struct.Struct("<Q")
HEADER_BYTES = _HEAD.size + _CHECKSUM.size


class FrameKind(IntEnum):
    """What a frame's body is, and what its number counts."""

    HEADER = 1
    """First frame of a segment: JSON with the agent's id; number: 0."""
    REPORT = 2
    """A report exactly as it is sent; number: its `seq`."""
    SHORT_REPORT = 3
    """Stands in for a report that the full disk refused; number: its `seq`."""
    RUN_ENDED = 4
    """The last heartbeat of a run; number: counts up per boot."""
    REPORT_ANSWERED = 5
    """The service's answer for a report, JSON; number: the report's `seq`."""
    RUN_ENDED_ANSWERED = 6
    """The service took a last heartbeat; number: that heartbeat's."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole record; `offset` is where its body begins in the file."""

    kind: FrameKind
    number: int
    body: bytes
    offset: int

    @property
    def end(self) -> int:
        """Offset of the first byte after the frame."""
        return self.offset + len(self.body)


def frame_encode(kind: FrameKind, number: int, body: bytes) -> bytes:
    """The bytes of one frame."""
    head = _HEAD.pack(MAGIC, len(body), kind, number)
    return head + _CHECKSUM.pack(_checksum(head, body)) + body


def frames_read(content: bytes) -> Iterator[Frame]:
    """Every whole frame of a file's content, in order; bytes between them are skipped."""
    start = content.find(MAGIC)
    while start >= 0:
        frame = _frame_at(content, start)
        if frame is not None:
            yield frame
        start = content.find(MAGIC, frame.end if frame is not None else start + 1)


def damaged_bytes(content: bytes) -> int:
    """Bytes that belong to no whole frame, not counting the zeros of space allocated ahead."""
    damaged, end = 0, 0
    for frame in frames_read(content):
        damaged += frame.offset - HEADER_BYTES - end
        end = frame.end
    return damaged + len(content[end:].rstrip(b"\0"))


def _frame_at(content: bytes, start: int) -> Frame | None:
    body_at = start + HEADER_BYTES
    if body_at > len(content):
        return None
    head = content[start : start + _HEAD.size]
    _, length, kind, number = _HEAD.unpack(head)
    (checksum,) = _CHECKSUM.unpack_from(content, start + _HEAD.size)
    body = content[body_at : body_at + length]
    if len(body) != length or checksum != _checksum(head, body):
        return None
    try:
        return Frame(kind=FrameKind(kind), number=number, body=body, offset=body_at)
    except ValueError:  # a kind that a newer agent wrote
        return None


def _checksum(head: bytes, body: bytes) -> int:
    return xxhash.xxh3_64_intdigest(head[len(MAGIC) :] + body)
