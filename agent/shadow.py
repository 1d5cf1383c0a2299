"""The spare's side of a planned migration: a copy of the leaving worker that keeps up with it.

It receives what `agent.tap` sends, in order: a parameter with its moments once, then the gradients of every step,
which it applies with the same optimizer. Whether both ends still hold the same bits is checked by digest, for every
parameter after at least one step was replayed. At the cut-over only small things are left to move.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch
import xxhash

from agent import codec, faults
from agent.state import Leaf, Registry, optimized
from agent.tap import ALGORITHM, STALL_SECONDS, Layout, unit_digest, view_of
from agent.transport import Moved, SourceFailed, bytes_of
from agent.wire import Address, Link, Message, dial

END_SECONDS = 5.0
AHEAD = 3
"""Records that may have arrived and not been applied, the one at work included."""


@dataclass(frozen=True)
class Source:
    """The worker to follow."""

    name: str
    address: Address
    secret: bytes


class ShadowCopy:
    """Follows a worker on a thread of its own until `finish` or `close`."""

    def __init__(self, registry: Registry, source: Source, tell: Callable[[Message], None]) -> None:
        """`tell` gets `shadow_ready` once the copy is complete and checked, or `shadow_failed` with a reason."""
        self._registry, self.source, self._tell = registry, source, tell
        self._link: Link | None = None
        self._closed = False
        self._ready = False
        self._ended = threading.Event()
        self._moved: Moved | None = None
        self._failure = ""
        self._leaves: list[Leaf] = []
        self._units: list[list[int]] = []
        self._chain = xxhash.xxh3_128()
        self._bytes = 0
        self._small = b""
        self._version = 0
        self._thread = threading.Thread(target=self._run, name="agent-shadow", daemon=True)
        self._thread.start()

    # Plan's thread -------------------------------------------------------------------------------------------

    def finish(self, epoch: int, version: int, seconds: float) -> Moved | None:
        """Complete the copy at `version`, where the worker has stopped. None if that is not possible."""
        link = self._link
        if not self._ready or link is None:
            return None
        try:
            link.send({"type": "finish", "epoch": epoch, "version": version})
        except OSError:
            return None
        self._ended.wait(seconds)
        return self._moved if self._ended.is_set() and self._version == version else None

    def close(self) -> bool:
        """End it; False if its thread does not end, so that memory may still be written."""
        self._closed = True
        if self._link is not None:
            self._link.close()
        self._thread.join(END_SECONDS)
        return not self._thread.is_alive()

    # Following -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._link = link = Link(dial(self.source.address, self.source.secret))
            link.sock.settimeout(STALL_SECONDS)
            link.send({"type": "shadow"})
            self._begin(link.receive())
            link.sock.settimeout(None)
            arrivals = _Arrivals(link, self.source.name)
            try:
                while self._moved is None and not self._closed:
                    self._take(link, arrivals.next())
            finally:
                arrivals.end()
        except Exception as error:  # whatever it was, the migration goes on without this copy
            self._failure = f"{type(error).__name__}: {error}"
        finally:
            self._ended.set()
            if self._link is not None:
                self._link.close()
            if self._moved is None and not self._closed:
                self._tell({"type": "shadow_failed", "reason": self._failure})

    def _begin(self, answer: Message) -> None:
        if answer["type"] != "shadow":
            raise SourceFailed(f"{self.source.name} cannot be followed: {answer.get('reason')}")
        self._leaves = self._registry.prepare(answer["manifest"])
        self._units = answer["units"]

    def _take(self, link: Link, arrived: _Arrived) -> None:
        message, data = arrived.message, arrived.data
        if arrived.digest:
            self._chain.update(arrived.digest)
            self._bytes += len(data)
        match message["type"]:
            case "base":
                self._take_base(message["units"], data)
                faults.at("shadow_receive")
            case "groups":
                self._take_groups(message["optimizer"], bytes(bytes_of(data)))
            case "log":
                self._apply(message["optimizer"], message["parts"], data)
                self._version = message["version"]
                if message["last"]:
                    link.send({"type": "at", "version": self._version})
            case "check":
                self._check(message["digests"])
            case "swept":
                self._ready = True
                self._tell({"type": "shadow_ready", "version": message["version"]})
            case "small":
                self._small = bytes(bytes_of(data))
            case "final":
                self._take_buffers(message["buffers"], data)
                self._version = message["version"]
            case "root":
                self._conclude(message["digest"])
            case _:
                raise SourceFailed(f"{self.source.name} ended it: {message.get('reason')}")

    @torch.no_grad()
    def _take_base(self, units: list[int], data: torch.Tensor) -> None:
        layout = Layout()
        for index in (index for unit in units for index in self._units[unit]):
            tensor = self._leaves[index].tensor
            offset = layout.place(tensor.nbytes)
            tensor.copy_(view_of(data, offset, tensor.dtype, tensor.shape))

    def _take_groups(self, index: int, encoded: bytes) -> None:
        for group, saved in zip(self._registry.optimizers[index].param_groups, codec.decode(encoded), strict=True):
            group.update(saved)

    def _apply(self, index: int, parts: Sequence[list[Any]], data: torch.Tensor) -> None:
        """Run the optimizer for the parameters whose gradients came; it leaves alone those without."""
        optimizer = self._registry.optimizers[index]
        parameters = optimized(optimizer)
        for parameter in parameters:
            parameter.grad = None
        for number, kind, shape, offset in parts:
            parameters[number].grad = view_of(data, offset, getattr(torch, kind), shape).to(parameters[number].device)
        type(optimizer).step(optimizer)
        for number, *_ in parts:
            parameters[number].grad = None

    def _check(self, digests: Sequence[tuple[int, str]]) -> None:
        for unit, theirs in digests:
            mine = unit_digest([self._leaves[index].tensor for index in self._units[unit]])
            if mine.hex() != theirs:
                name = self._leaves[self._units[unit][0]].name
                raise SourceFailed(f"{name} came out differently than on {self.source.name}", damaged=True)
            self._chain.update(mine)

    @torch.no_grad()
    def _take_buffers(self, places: Sequence[tuple[int, int]], data: torch.Tensor) -> None:
        for index, offset in places:
            tensor = self._leaves[index].tensor
            tensor.copy_(view_of(data, offset, tensor.dtype, tensor.shape))

    def _conclude(self, sent: str) -> None:
        moved_at = datetime.now(UTC)
        received = self._chain.hexdigest()
        if sent != received:
            raise SourceFailed(f"the state of {self.source.name} arrived with another digest", damaged=True)
        self._registry.received(self._small)
        self._moved = Moved(
            self.source.name, "own", self._bytes, sent, received, moved_at, datetime.now(UTC), ALGORITHM
        )


@dataclass(frozen=True)
class _Arrived:
    """A message with the bytes that follow it, verified, and their digest."""

    message: Message
    data: torch.Tensor
    digest: bytes = b""
    buffer: torch.Tensor | None = None
    """Where the data lie."""


class _Arrivals:
    """Receives on a thread of its own, some records ahead of the one being applied: neither waits for the other."""

    def __init__(self, link: Link, name: str) -> None:
        self._link, self._name = link, name
        self._arrived: queue.SimpleQueue[_Arrived | Exception] = queue.SimpleQueue()
        self._free: queue.SimpleQueue[torch.Tensor | None] = queue.SimpleQueue()
        for _ in range(AHEAD):
            self._free.put(torch.empty(0, dtype=torch.uint8))
        self._last: torch.Tensor | None = None
        threading.Thread(target=self._run, name="agent-arrivals", daemon=True).start()

    def next(self) -> _Arrived:
        """The next message; its data are valid until the next call. Raises what ended the stream."""
        if self._last is not None:
            self._free.put(self._last)
        arrived = self._arrived.get()
        if isinstance(arrived, Exception):
            self._last = None
            raise arrived
        self._last = arrived.buffer
        return arrived

    def end(self) -> None:
        self._free.put(None)

    def _run(self) -> None:
        try:
            while True:
                message = self._link.receive()
                if "size" not in message:
                    self._arrived.put(_Arrived(message, torch.empty(0, dtype=torch.uint8)))
                    continue
                buffer = self._free.get()
                if buffer is None:
                    return
                self._arrived.put(self._receive(message, buffer))
        except Exception as error:
            self._arrived.put(error)

    def _receive(self, message: Message, buffer: torch.Tensor) -> _Arrived:
        size = message["size"]
        if buffer.numel() < size:
            buffer = torch.empty(size, dtype=torch.uint8)
        view = bytes_of(buffer)[:size]
        got = 0
        while got < size:
            count = self._link.sock.recv_into(view[got:])
            if count == 0:
                raise ConnectionError("the peer closed the connection")
            got += count
        digest = xxhash.xxh3_128_digest(view)
        if digest.hex() != message["digest"]:
            raise SourceFailed(f"a record of {self._name} arrived damaged", damaged=True)
        return _Arrived(message, buffer[:size], digest, buffer)
