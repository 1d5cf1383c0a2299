"""New lines of the kernel log: `/dev/kmsg`, or a file that something appends to (journald, syslog)."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

_RECORD_BYTES = 8192
_FILE_POLL_S = 0.2


class KernelLog:
    """Follows a kernel log from now on, or from its beginning.

    Raises OSError when the log cannot be opened (a container often may not read `/dev/kmsg`).
    """

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_device = stat.S_ISCHR(os.fstat(self._descriptor).st_mode)
        self._partial = b""
        if not from_start:
            os.lseek(self._descriptor, 0, os.SEEK_END)

    def __enter__(self) -> KernelLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def lines(self, timeout_s: float) -> Iterator[str]:
        """The lines there are; waits at most `timeout_s` for the first."""
        found = self._device_lines(timeout_s) if self._is_device else self._file_lines(timeout_s)
        for line in found:
            yield line.decode("utf-8", "replace")

    def close(self) -> None:
        """Close the log."""
        os.close(self._descriptor)

    def _device_lines(self, timeout_s: float) -> Iterator[bytes]:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            return
        while True:
            try:
                record = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:  # the ring has overtaken us; the next read goes on at its oldest record
                continue
            yield record.partition(b";")[2].split(b"\n", 1)[0]

    def _file_lines(self, timeout_s: float) -> Iterator[bytes]:
        content = os.read(self._descriptor, 1 << 20)
        if not content:
            select.select([], [], [], min(timeout_s, _FILE_POLL_S))
            self._reopen_if_replaced()
            content = os.read(self._descriptor, 1 << 20)
        *whole, self._partial = (self._partial + content).split(b"\n")
        yield from whole

    def _reopen_if_replaced(self) -> None:
        try:
            now = os.stat(self._path)
        except FileNotFoundError:
            return
        held = os.fstat(self._descriptor)
        if (now.st_dev, now.st_ino) != (held.st_dev, held.st_ino):
            fresh = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.close(self._descriptor)
            self._descriptor, self._partial = fresh, b""
        elif now.st_size < os.lseek(self._descriptor, 0, os.SEEK_CUR):
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            self._partial = b""
