"""The coordinator's write-ahead log: what it decided, on disk before anybody acts on it.

One JSON object per line after its CRC-32. A torn last line (the coordinator died while writing) is ignored;
damage elsewhere is an error, because what follows it can no longer be trusted.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import zlib
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class LogDamaged(ValueError):
    """The log cannot be trusted; the message names file and line."""


class LogInUse(RuntimeError):
    """Another coordinator of the run lives; the message says what to do."""


LOCK_SECONDS = 10.0
"""How long a coordinator that is being killed may still hold the log."""


class Wal:
    """Append-only; `records` are those of earlier coordinators of the same run."""

    def __init__(self, path: Path) -> None:
        """Raises LogDamaged, LogInUse, or OSError if the folder cannot be written."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        self._lock(path)
        self.records, good = _read(path)
        self._file.truncate(good)

    def _lock(self, path: Path) -> None:
        # Two coordinators would decide twice. The kernel (and a network file system) frees the lock of a dead one.
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LogInUse(f"another coordinator still writes to {path}; end it first") from None
                time.sleep(0.05)

    def append(self, record: Record) -> None:
        """Durable on return."""
        body = json.dumps(record, separators=(",", ":")).encode()
        self._file.write(b"%08x %s\n" % (zlib.crc32(body), body))
        self._file.flush()
        os.fdatasync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _read(path: Path) -> tuple[list[Record], int]:
    """Records and the number of good bytes."""
    if not path.exists():
        return [], 0
    data = path.read_bytes()
    records: list[Record] = []
    good = 0
    lines = data.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        check, _, body = line.rstrip(b"\n").partition(b" ")
        whole = line.endswith(b"\n") and len(check) == 8
        if whole and check == b"%08x" % zlib.crc32(body):
            records.append(json.loads(body))
            good += len(line)
        elif number == len(lines):
            break
        else:
            raise LogDamaged(f"{path}, line {number}: checksum does not match; move the file away to start anew")
    return records, good
