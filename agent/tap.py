"""The leaving worker's side of a planned migration: its state flows to the spare while it goes on training.

Every parameter and moment changes in every step, so copying again and again never converges. Instead each tensor
is copied once, and from then on the spare gets the gradients that the optimizer gets, and runs the same optimizer:

    base   a parameter with its moments, as of the step applied last
    log    the gradients of one step, for the parameters whose base went before, just before they are applied
    check  the digest of a parameter with its moments, which the spare compares with what it has computed itself
    final  when training pauses for the cut-over: everything that is small

They travel on one connection in this order of events, so no record needs more than its place to be applied right.
Training waits for a memory copy of its gradients in each step, and never for the connection: a spare that falls
behind by more than a bound is dropped, and the migration stops and copies instead.
"""

from __future__ import annotations

import collections
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash

from agent import codec, faults
from agent.state import Leaf, Registry, optimized
from agent.transport import bytes_of
from agent.wire import Link, Message

ALGORITHM = "xxh3-128-replayed"
"""xxh3-128 over the digests of all records and checks, each computed on its own end."""
SLICE_BYTES = 8 * 1024 * 1024
STALL_SECONDS = 20.0
PREDECESSOR_SECONDS = 2.0
"""How long a spare waits for the end of the stream to one that was lost."""
_ALIGNMENT = 16
_MIB = 1024 * 1024


def queue_bytes() -> int:
    """How far the spare may fall behind (`YOCO_SHADOW_QUEUE_MIB`, default 1024)."""
    return int(float(os.environ.get("YOCO_SHADOW_QUEUE_MIB", "1024")) * _MIB)


def why_unfit(registry: Registry) -> str | None:
    """Why this state cannot be followed by replaying gradients; None if it can."""
    for optimizer in registry.optimizers:
        kind = type(optimizer)
        if not kind.__module__.startswith("torch.optim.") or isinstance(optimizer, torch.optim.LBFGS):
            return f"{kind.__qualname__} is not known to update each parameter by itself"
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            return "the optimizer has step hooks"
    for name, parameter in registry.parameters():
        if type(parameter) not in (torch.nn.Parameter, torch.Tensor):
            return f"{name} is sharded"
    states = [state for optimizer in registry.optimizers for state in optimizer.state.values()]
    if any(not isinstance(value, torch.Tensor) for state in states for value in state.values()):
        return "the optimizer keeps state that is no tensor"
    return None


class Layout:
    """Where pieces of a message lie in its data."""

    def __init__(self) -> None:
        self.size = 0

    def place(self, size: int) -> int:
        offset = -(-self.size // _ALIGNMENT) * _ALIGNMENT
        self.size = offset + size
        return offset


def view_of(buffer: torch.Tensor, offset: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """The part of a byte buffer that holds a tensor."""
    size = dtype.itemsize * int(torch.Size(shape).numel())
    return buffer[offset : offset + size].view(dtype).view(list(shape))


@dataclass
class Record:
    """The gradients of one step and optimizer."""

    version: int
    optimizer: int
    groups: bytes
    buffer: torch.Tensor
    pieces: list[tuple[int, str, list[int], int, int]] = field(default_factory=list)
    """Parameter number, dtype, shape, offset and size."""
    copied: int = 0
    """How many pieces are in the buffer already."""


class Tap:
    """Sees every step between the commit gate and the optimizers. One stream at a time."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.changing = threading.Lock()
        """Held while tensors change."""
        self.version = 0
        """Steps applied; the tensors are those of this version while `changing` is free."""
        self.stream: Stream | None = None

    # Training thread -----------------------------------------------------------------------------------------

    def hold(self) -> None:
        """The optimizers are about to run."""
        self.changing.acquire()

    def capture(self, owner: Any, version: int) -> None:
        """`owner` is about to apply its gradients for `version`."""
        stream = self.stream
        if stream is None:
            return
        for index, optimizer in enumerate(self.registry.optimizers):
            if optimizer is owner:
                stream.capture(index, optimizer, version)

    def release(self, version: int) -> None:
        """The step is applied."""
        self.version = version
        self.changing.release()

    # Serving threads -----------------------------------------------------------------------------------------

    def serve(self, link: Link, servable: Callable[[int, int], bool]) -> str | None:
        """Feed a spare until it has taken over or gone. Returns why it could not be served, if so."""
        reason = why_unfit(self.registry) or ("training has not begun" if self.version == 0 else None)
        deadline = time.monotonic() + PREDECESSOR_SECONDS
        while self.stream is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        if reason is None and self.stream is not None:
            reason = "another spare is being fed"
        if reason is not None:
            link.send({"type": "refused", "reason": reason})
            return reason
        with self.changing:
            self.stream = stream = Stream(self, link, servable)
        try:
            return stream.run()
        finally:
            self.stream = None


class Stream:
    """What goes to one spare."""

    def __init__(self, tap: Tap, link: Link, servable: Callable[[int, int], bool]) -> None:
        self._tap, self._link, self._servable = tap, link, servable
        self._leaves = tap.registry.leaves()
        self._units = list(_units(tap.registry, self._leaves))
        self._manifest = [leaf.describe() for leaf in self._leaves]
        unit_of = {id(parameter): unit for unit, (_, parameter) in enumerate(tap.registry.parameters())}
        self._unit_of = {
            (index, number): unit_of[id(parameter)]
            for index, optimizer in enumerate(tap.registry.optimizers)
            for number, parameter in enumerate(optimized(optimizer))
            if id(parameter) in unit_of
        }
        self._followed: set[int] = set()
        self._queue: collections.deque[Record] = collections.deque()
        self._behind: dict[int, int] = {}
        """Bytes of gradients by version that the spare has not replayed."""
        self._spent: list[torch.Tensor] = []
        self._limit = queue_bytes()
        self._changed = threading.Condition()
        self._failure: str | None = None
        self._finish: Message | None = None
        self._chain = xxhash.xxh3_128()
        self._staging = torch.empty(0, dtype=torch.uint8)

    # Training thread -----------------------------------------------------------------------------------------

    def capture(self, index: int, optimizer: torch.optim.Optimizer, version: int) -> None:
        """Copy the gradients that `optimizer` is about to apply."""
        if self._failure is not None:
            return
        chosen = [
            (number, parameter.grad)
            for number, parameter in enumerate(optimized(optimizer))
            if parameter.grad is not None and self._unit_of.get((index, number)) in self._followed
        ]
        if any(gradient.is_sparse for _, gradient in chosen):
            self._fail("a gradient is sparse")
            return
        layout = Layout()
        offsets = [layout.place(gradient.numel() * gradient.element_size()) for _, gradient in chosen]
        behind = sum(list(self._behind.values()))
        if behind and behind + layout.size > self._limit:
            self._fail(f"the spare fell behind by more than {self._limit / _MIB:.1f} MiB of gradients")
            return
        groups = [{key: value for key, value in each.items() if key != "params"} for each in optimizer.param_groups]
        record = Record(version, index, codec.encode(groups, "groups"), self._buffer(layout.size))
        for (number, gradient), offset in zip(chosen, offsets, strict=True):
            kind = str(gradient.dtype).removeprefix("torch.")
            size = gradient.numel() * gradient.element_size()
            record.pieces.append((number, kind, list(gradient.shape), offset, size))
        with self._changed:
            self._queue.append(record)
            self._behind[version] = self._behind.get(version, 0) + layout.size
            self._changed.notify_all()
        # The first pieces are on their way while the others are copied: the last step's decide how long a move pauses.
        for (_, gradient), offset in zip(chosen, offsets, strict=True):
            view_of(record.buffer, offset, gradient.dtype, gradient.shape).copy_(gradient)
            with self._changed:
                record.copied += 1
                self._changed.notify_all()

    def _buffer(self, size: int) -> torch.Tensor:
        with self._changed:
            for index, buffer in enumerate(self._spent):
                if buffer.numel() >= size:
                    return self._spent.pop(index)
        return torch.empty(size, dtype=torch.uint8)

    def _fail(self, reason: str) -> None:
        with self._changed:
            self._failure = self._failure or reason
            self._queue.clear()
            self._changed.notify_all()
        self._link.close()

    # Sending thread ------------------------------------------------------------------------------------------

    def run(self) -> str | None:
        """Send until the spare has taken over or gone."""
        reader = threading.Thread(target=self._read, name="agent-shadow-reader", daemon=True)
        try:
            self._link.send(
                {"type": "shadow", "manifest": self._manifest, "units": self._units, "version": self._tap.version}
            )
            reader.start()
            reason = self._feed()
            if reason is None:
                # The spare may still be telling how far it is; closed under it, the connection would lose the end.
                reader.join(STALL_SECONDS)
            return reason
        except OSError as error:
            return self._failure or f"the spare could not be fed: {error}"
        finally:
            self._fail("the stream has ended")

    def _feed(self) -> str | None:
        base, checks = collections.deque(range(len(self._units))), collections.deque(range(len(self._units)))
        replayed_from: int | None = None
        sent = 0
        swept = False
        while True:
            with self._changed:
                if self._failure is not None:
                    return self._failure
                record = self._queue.popleft() if self._queue else None
                finish = self._finish
            if record is not None:
                self._send_record(record)
                sent = record.version
            elif base:
                replayed_from = self._send_base(base)
            elif checks and replayed_from is not None and sent > replayed_from:
                self._send_check(checks)
            elif not checks and not swept:
                swept = True
                self._link.send({"type": "swept", "version": sent})
            elif finish is not None:
                return self._send_final(finish)
            else:
                with self._changed:
                    self._changed.wait_for(lambda: self._queue or self._failure or self._finish, 0.5)

    def _read(self) -> None:
        """The spare says how far it is, and once that the plan makes it a member."""
        try:
            while True:
                message = self._link.receive()
                with self._changed:
                    if message["type"] == "finish":
                        self._finish = message
                    else:
                        self._behind = {each: size for each, size in self._behind.items() if each > message["version"]}
                    self._changed.notify_all()
        except OSError:
            self._fail("the spare is gone")

    def _send_base(self, base: collections.deque[int]) -> int:
        """The next parameters with their moments. Returns the version that they are of."""
        units: list[int] = []
        layout = Layout()
        pieces: list[tuple[Leaf, int]] = []
        while base and (not units or layout.size < SLICE_BYTES):
            units.append(base.popleft())
            for index in self._units[units[-1]]:
                tensor = self._leaves[index].tensor
                pieces.append((self._leaves[index], layout.place(tensor.numel() * tensor.element_size())))
        if self._staging.numel() < layout.size:
            self._staging = torch.empty(layout.size, dtype=torch.uint8)
        with self._tap.changing:
            for leaf, offset in pieces:
                view_of(self._staging, offset, leaf.tensor.dtype, leaf.tensor.shape).copy_(leaf.tensor)
            version = self._tap.version
            self._followed.update(units)
        self._send({"type": "base", "units": units}, bytes_of(self._staging)[: layout.size])
        faults.at("shadow_send", progress=1 - len(base) / len(self._units))
        return version

    def _send_record(self, record: Record) -> None:
        data = bytes_of(record.buffer)
        pieces = list(record.pieces)
        header: Message = {"type": "log", "version": record.version, "optimizer": record.optimizer}
        self._send({**header, "type": "groups"}, memoryview(record.groups))
        taken = 0
        while pieces:
            first = pieces[0][3]
            part = [pieces.pop(0)]
            while pieces and pieces[0][3] + pieces[0][4] - first <= SLICE_BYTES:
                part.append(pieces.pop(0))
            end = part[-1][3] + part[-1][4]
            taken += len(part)
            if not self._copied(record, taken):
                return
            described = [[number, kind, shape, offset - first] for number, kind, shape, offset, _ in part]
            self._send({**header, "parts": described, "last": not pieces}, data[first:end])
        with self._changed:
            self._spent = [record.buffer, *self._spent[:1]]

    def _copied(self, record: Record, count: int) -> bool:
        """Wait until so many pieces are in the buffer; False if the stream has failed meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: record.copied >= count or self._failure is not None)
            return self._failure is None

    def _send_check(self, checks: collections.deque[int]) -> None:
        """Digests of parameters and moments at the version that the spare has, with this record, replayed too."""
        found: list[list[Any]] = []
        done = 0
        with self._tap.changing:
            if self._queue:
                return  # the spare must replay these first
            while checks and done < SLICE_BYTES:
                unit = checks.popleft()
                digest = unit_digest([self._leaves[index].tensor for index in self._units[unit]])
                done += sum(self._leaves[index].tensor.nbytes for index in self._units[unit])
                self._chain.update(digest)
                found.append([unit, digest.hex()])
            version = self._tap.version
        self._link.send({"type": "check", "version": version, "digests": found})

    def _send_final(self, finish: Message) -> str | None:
        epoch, version = finish["epoch"], finish["version"]
        registry = self._tap.registry
        if not self._servable(epoch, version) or self._tap.version != version:
            self._link.send({"type": "refused", "reason": f"it is at version {self._tap.version}"})
            return "the plan changed"
        leaves = registry.leaves()
        buffers = _buffers(registry, leaves)
        if [leaf.describe() for leaf in leaves] != self._manifest or any(
            now.tensor.data_ptr() != then.tensor.data_ptr()
            for index, (now, then) in enumerate(zip(leaves, self._leaves, strict=True))
            if index not in buffers
        ):
            self._link.send({"type": "refused", "reason": "the kind of state has changed since"})
            return "the kind of state has changed since the copy began"
        small = registry.export()
        layout = Layout()
        places = [(index, layout.place(leaves[index].tensor.nbytes)) for index in buffers]
        data = torch.empty(layout.size, dtype=torch.uint8)
        for index, offset in places:
            tensor = leaves[index].tensor
            view_of(data, offset, tensor.dtype, tensor.shape).copy_(tensor)
        self._send({"type": "small", "version": version}, memoryview(small))
        self._send({"type": "final", "version": version, "buffers": places}, bytes_of(data))
        self._link.send({"type": "root", "digest": self._chain.hexdigest()})
        return None

    def _send(self, header: Message, data: memoryview) -> None:
        digest = xxhash.xxh3_128_digest(data)
        self._chain.update(digest)
        self._link.send({**header, "size": len(data), "digest": digest.hex()})
        self._link.sock.sendall(data)


def unit_digest(tensors: Sequence[torch.Tensor]) -> bytes:
    """xxh3-128 of tensors one after the other."""
    state = xxhash.xxh3_128()
    for tensor in tensors:
        state.update(bytes_of(tensor.detach().cpu().contiguous()))
    return state.digest()


def _buffers(registry: Registry, leaves: Sequence[Leaf]) -> list[int]:
    names = {name for name, _ in registry.buffers()}
    return [index for index, leaf in enumerate(leaves) if leaf.name in names]


def _units(registry: Registry, leaves: Sequence[Leaf]) -> Iterator[list[int]]:
    """Indices of leaves that change together: each parameter with its moments."""
    index_of = {leaf.name: index for index, leaf in enumerate(leaves)}
    moments: dict[int, list[int]] = {}
    for number_of_optimizer, optimizer in enumerate(registry.optimizers):
        for number, parameter in enumerate(optimized(optimizer)):
            prefix = f"optimizer{number_of_optimizer}.{number}."
            state = optimizer.state.get(parameter, {})
            moments.setdefault(id(parameter), []).extend(index_of[prefix + key] for key in sorted(state))
    for name, parameter in registry.parameters():
        yield [index_of[name], *moments.get(id(parameter), [])]
