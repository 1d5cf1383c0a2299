"""Moving the state of one version from a peer's memory into this process, over several TCP streams.

The peer's tensors are cut into segments of about 4 MiB that both sides derive from the manifest. The receiver
asks for segments by number, receives them in place, and checks each against the sender's xxh3-128. A damaged
segment is asked for again; if the peer dies, another peer at the same version sends the rest: replicas are
bit-identical, so what has been verified stays. At the end the digest of all segment digests must be the same
on both ends.
"""

from __future__ import annotations

import collections
import json
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch
import xxhash

from agent import faults
from agent.state import Leaf, Registry
from agent.wire import Address, Connection, Link, dial, receive_exactly

SEGMENT_BYTES = 4 * 1024 * 1024
PIECES_PER_SEGMENT = 256
STREAM_SECONDS = 20.0
"""A stream without a byte for this long counts as dead."""
_REQUEST = struct.Struct("<I")
_DIGEST_BYTES = 16
_ROOT = 0xFFFFFFFF
_WINDOW = 3
_ATTEMPTS = 3


class SourceFailed(ConnectionError):
    """A peer could not deliver the state; `damaged` if what it sent did not match its digests."""

    def __init__(self, message: str, damaged: bool = False, source: str = "") -> None:
        super().__init__(message)
        self.damaged, self.source = damaged, source


@dataclass(frozen=True)
class Moved:
    """A completed and verified transfer."""

    source: str
    part: str
    bytes: int
    digest_sent: str
    digest_received: str
    moved_at: datetime
    verified_at: datetime
    algorithm: str = "xxh3-128-tree-4MiB"
    """xxh3-128 over the xxh3-128 of 4 MiB segments, unless another is named."""


class Segments:
    """The bytes of a state, cut alike on both sides."""

    def __init__(self, leaves: Sequence[Leaf], small: memoryview) -> None:
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.parts: list[list[memoryview]] = []
        self.sizes: list[int] = []
        self._open_size = SEGMENT_BYTES
        self._add(small)
        for leaf in leaves:
            self._add(self._view(leaf.tensor))

    def _view(self, tensor: torch.Tensor) -> memoryview:
        flat = tensor
        if tensor.device.type != "cpu" or not tensor.is_contiguous():  # CUDA staging: untested, no GPU
            flat = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            flat.copy_(tensor)
            self._copies.append((tensor, flat))
        return bytes_of(flat)

    def _add(self, view: memoryview) -> None:
        while len(view):
            full = self._open_size >= SEGMENT_BYTES or len(self.parts[-1]) >= PIECES_PER_SEGMENT
            if full:
                self.parts.append([])
                self.sizes.append(0)
                self._open_size = 0
            piece = view[: SEGMENT_BYTES - self._open_size]
            self.parts[-1].append(piece)
            self.sizes[-1] += len(piece)
            self._open_size += len(piece)
            view = view[len(piece) :]

    def digest(self, index: int) -> bytes:
        state = xxhash.xxh3_128()
        for piece in self.parts[index]:
            state.update(piece)
        return state.digest()

    def write_back(self) -> None:
        """Copy what was received for tensors that could not be received in place."""
        for tensor, flat in self._copies:
            tensor.copy_(flat)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor."""
    if not tensor.numel():
        return memoryview(b"")  # the last shards of a small parameter
    array: Any = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return memoryview(array).cast("B")


def root_digest(digests: Sequence[bytes]) -> str:
    return xxhash.xxh3_128(b"".join(digests)).hexdigest()


def state_digest(registry: Registry) -> str:
    """The digest that a transfer of this process's state would show on both ends."""
    segments = Segments(registry.leaves(), memoryview(registry.export()))
    return root_digest([segments.digest(index) for index in range(len(segments.parts))])


# The sender ------------------------------------------------------------------------------------------------


class Offer:
    """One version's state as this process serves it in one epoch, shared by all streams of all receivers."""

    def __init__(self, registry: Registry) -> None:
        self.manifest = registry.manifest()
        self.small = registry.export()
        self._segments = Segments(registry.leaves(), memoryview(self.small))
        self._digests: dict[int, bytes] = {}

    def serve(self, link: Link, is_current: Callable[[], bool]) -> None:
        """Answer requests on one stream until the receiver closes it or the epoch ends."""
        sock = link.sock
        sock.settimeout(STREAM_SECONDS)
        while True:
            try:
                request = receive_exactly(sock, _REQUEST.size)
            except ConnectionError:
                return
            (index,) = _REQUEST.unpack(request)
            if not is_current():
                return
            if index == _ROOT:
                total = range(len(self._segments.parts))
                for missing in [item for item in total if item not in self._digests]:
                    self._digests[missing] = self._segments.digest(missing)
                sock.sendall(bytes.fromhex(root_digest([self._digests[item] for item in total])))
                continue
            digest = self._digests[index] = self._segments.digest(index)
            faults.at("serve", progress=index / len(self._segments.parts))
            if faults.at("corrupt"):
                digest = bytes(_DIGEST_BYTES)
            _send_all(sock, [*self._segments.parts[index], memoryview(digest)])


def _send_all(sock: Connection, pieces: list[memoryview]) -> None:
    while pieces:
        count = sock.sendmsg(pieces[:512])
        while pieces and count >= len(pieces[0]):
            count -= len(pieces.pop(0))
        if count:
            pieces[0] = pieces[0][count:]


# The receiver ----------------------------------------------------------------------------------------------


class Transfer:
    """Receives the state of `version` into `registry` from the first of `sources` that can deliver it.

    A source is a worker's name, its address, and which of its states to ask for: its `own`, or the `copy` that it
    keeps of another rank's.
    """

    def __init__(
        self,
        registry: Registry,
        sources: Sequence[tuple[str, Address, str]],
        *,
        secret: bytes,
        epoch: int,
        version: int,
        streams: int,
    ) -> None:
        self._registry = registry
        self._sources = list(sources)
        self._secret, self._epoch, self._version, self._streams = secret, epoch, version, streams
        self._segments: Segments | None = None
        self._header: dict[str, Any] = {}
        self._small = bytearray()
        self._digests: dict[int, bytes] = {}
        self._lock = threading.Lock()
        self._failure: SourceFailed | None = None
        self._cancelled = False
        self._links: list[Link] = []

    def cancel(self) -> None:
        """Stop receiving, from any thread; `run` ends with SourceFailed."""
        self._cancelled = True
        self._fail(SourceFailed("a newer plan replaced this transfer"))
        for link in list(self._links):
            link.close()

    def run(self) -> Moved:
        """Raises SourceFailed if no source could deliver, StateMismatch if the states differ in kind."""
        failure = SourceFailed("no worker holds the state")
        for name, address, part in self._sources:
            if self._cancelled:
                break
            try:
                return self._from_source(name, address, part)
            except SourceFailed as error:
                failure = error
            except OSError as error:
                failure = SourceFailed(f"{name} was lost while it sent its state: {error}")
        raise failure

    def _open(self, name: str, address: Address, part: str) -> Link:
        link = Link(dial(address, self._secret))
        link.sock.settimeout(STREAM_SECONDS)
        link.send({"type": "state", "part": part, "epoch": self._epoch, "version": self._version})
        answer = link.receive()
        if answer["type"] != "offer":
            link.close()
            raise SourceFailed(f"{name} cannot serve version {self._version}: {answer.get('reason')}")
        header = {key: answer[key] for key in ("manifest", "small")}
        if not self._header:
            self._header = header
            self._small = bytearray(header["small"])
            leaves = self._registry.prepare(header["manifest"])
            self._segments = Segments(leaves, memoryview(self._small))
        elif json.dumps(self._header) != json.dumps(header):
            link.close()
            raise SourceFailed(f"{name} holds another kind of state than the first source", damaged=True, source=name)
        return link

    def _from_source(self, name: str, address: Address, part: str) -> Moved:
        first = self._open(name, address, part)
        assert self._segments is not None
        self._links = links = [first]
        try:
            todo = collections.deque(index for index in range(len(self._segments.parts)) if index not in self._digests)
            width = max(1, min(self._streams, len(todo)))
            for _ in range(width - 1):
                links.append(self._open(name, address, part))
            if not self._cancelled:
                self._failure = None
            threads = [threading.Thread(target=self._stream, args=(name, link, todo), daemon=True) for link in links]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if self._failure is not None:
                raise self._failure
            moved_at = datetime.now(UTC)
            first.sock.sendall(_REQUEST.pack(_ROOT))
            sent = receive_exactly(first.sock, _DIGEST_BYTES).hex()
        finally:
            for link in links:
                link.close()
        received = root_digest([self._digests[index] for index in range(len(self._segments.parts))])
        if sent != received:
            raise SourceFailed(f"the state of {name} arrived with another digest", damaged=True, source=name)
        self._segments.write_back()
        self._registry.received(bytes(self._small))
        return Moved(name, part, sum(self._segments.sizes), sent, received, moved_at, datetime.now(UTC))

    def _stream(self, name: str, link: Link, todo: collections.deque[int]) -> None:
        """Receive segments on one stream until none is left."""
        asked: collections.deque[int] = collections.deque()
        damaged: collections.Counter[int] = collections.Counter()
        assert self._segments is not None
        try:
            while self._failure is None:
                while len(asked) < _WINDOW and todo:
                    try:
                        index = todo.popleft()
                    except IndexError:
                        break
                    link.sock.sendall(_REQUEST.pack(index))
                    asked.append(index)
                if not asked:
                    return
                index = asked.popleft()
                _receive_into(link.sock, self._segments.parts[index])
                digest = receive_exactly(link.sock, _DIGEST_BYTES)
                mine = self._segments.digest(index)
                if mine == digest:
                    self._digests[index] = mine
                    faults.at("receive", progress=len(self._digests) / len(self._segments.parts))
                    continue
                damaged[index] += 1
                if damaged[index] >= _ATTEMPTS:
                    raise SourceFailed(f"segment {index} of {name} arrived damaged {_ATTEMPTS} times", True, name)
                todo.append(index)
        except SourceFailed as error:
            self._fail(error)
        except OSError as error:
            self._fail(SourceFailed(f"{name} was lost while it sent its state: {error}"))

    def _fail(self, failure: SourceFailed) -> None:
        with self._lock:
            self._failure = self._failure or failure


def _receive_into(sock: Connection, pieces: Sequence[memoryview]) -> None:
    left = list(pieces)
    while left:
        count, _, _, _ = sock.recvmsg_into(left[:512])
        if count == 0:
            raise ConnectionError("the peer closed the connection")
        while left and count >= len(left[0]):
            count -= len(left.pop(0))
        if count:
            left[0] = left[0][count:]
