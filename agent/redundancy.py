"""Exact recovery without replica groups: each rank keeps a copy of the shard of the rank before it.

In pure FSDP a shard exists once. So every rank also holds the parameters and the optimizer state of the rank before
it, and applies the same optimizer to them with the same gradients: before a step may commit, each rank sends its
reduced (and clipped) gradient shard to the next. A step that committed anywhere has therefore reached every copy, or
will when its keeper catches up, and a lost rank's shard at the committed version is with its neighbour.

The cost: one gradient shard per rank and step on the wire, a second optimizer run, and memory for one shard, its
optimizer state and two gradient shards. The loss of two neighbouring ranks at once loses the shard between them.

The copy follows exactly as long as the optimizer treats every element by itself (as SGD, Adam and AdamW do). One
that needs the whole tensor (LAMB, Muon, Shampoo) does not, so owner and keeper compare digests through the journal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash

from agent import codec
from agent.group import LiveGroup
from agent.state import Leaf, Registry, local, optimized
from agent.transport import bytes_of

CHECK_EVERY = 50
"""Steps between two comparisons of a shard with its copy; the first steps are all compared."""
CHECK_FIRST = 3


class CopyDiffers(RuntimeError):
    """A copy has parted from its original; the message says what to change."""


@dataclass
class _Twin:
    """Stands in for an optimizer: the copied tensors of its groups, and the state that it keeps for them."""

    groups: list[list[torch.Tensor]]
    state: defaultdict[torch.Tensor, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [{"params": tensors} for tensors in self.groups]


class ShardCopy(Registry):
    """Another rank's shard and optimizer state, under the names that they have there."""

    def __init__(self, original: Registry) -> None:
        super().__init__()
        self._original = original
        self._scratch: dict[str, torch.Tensor] = {}
        self._outgoing, self._incoming = _Gradients([]), _Gradients([])
        self._steps = 0
        self.filled = False
        """Whether it holds the other rank's state of this worker's version."""

    # What a peer sends or is sent: see Registry ----------------------------------------------------------

    def buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Buffers are equal on all ranks: what arrives for them is dropped."""
        for name, live in self._original.buffers():
            yield name, self._scratch.setdefault(name, torch.empty_like(live))

    def leaves(self) -> list[Leaf]:
        """As the other rank would list them; its buffers are this rank's."""
        buffers = {leaf.name: leaf for leaf in self._original.buffer_leaves()}
        return [buffers.get(leaf.name, leaf) for leaf in super().leaves()]

    def export(self) -> bytes:
        """As the other rank would say it: all is equal on all ranks, but for the numbers in optimizers."""
        small = codec.decode(self._original.small)
        small["scalars"] = self.scalars()
        self.small, self.history = codec.encode(small, "registered"), self._original.history
        return super().export()

    def prepare(self, manifest: list[list[Any]]) -> list[Leaf]:
        """As `Registry.prepare`; makes the copies of the parameters, whose shapes are known only now."""
        self.filled = False
        shapes = {name: shape for name, _, shape in manifest}
        held = dict(self._parameters)
        self._parameters = []
        copies: dict[torch.Tensor, torch.Tensor] = {}
        for name, original in self._original.parameters():
            copy = held.get(name)
            if copy is None or list(copy.shape) != shapes.get(name):
                copy = torch.empty(shapes.get(name, [0]), dtype=original.dtype, device=local(original).device)
            self._parameters.append((name, copy))
            copies[original] = copy
        originals = self._original.optimizers
        twins = [_Twin([[copies[each] for each in group["params"]] for group in one.param_groups]) for one in originals]
        self.optimizers = twins  # type: ignore[assignment]
        self._outgoing = _Gradients([tensor for one in originals for tensor in optimized(one)])
        self._incoming = _Gradients([tensor for twin in self.optimizers for tensor in optimized(twin)])
        return super().prepare(manifest)

    def received(self, exported: bytes) -> None:
        """The copied tensors are here; `exported` has the numbers that belong to them."""
        self.restore_scalars(codec.decode(codec.decode(exported)["small"])["scalars"])
        self.filled = True

    # Each step -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Training begins or goes on: compare the first steps again."""
        self._steps = 0

    def exchange(self, group: LiveGroup) -> None:
        """Give this rank's gradients to the next rank and take those of the rank before.

        The caller asks `group.failed` whether it succeeded. Raises CopyDiffers.
        """
        rank, size = group.rank(), group.size()
        self._outgoing.pack()
        sent, expected = [0] * size, [0] * size
        sent[(rank + 1) % size] = self._outgoing.data.numel()
        expected[(rank - 1) % size] = self._incoming.data.numel()
        group.alltoall_base(self._incoming.data, self._outgoing.data, expected, sent).wait()
        if group.failed:
            return
        self._incoming.unpack()
        self._steps += 1
        if self._steps <= CHECK_FIRST or self._steps % CHECK_EVERY == 0:
            self._compare(group)

    @torch.no_grad()
    def apply(self, optimizer: torch.optim.Optimizer, step: Callable[[], Any], again: Callable[[], Any]) -> Any:
        """Run `step`, the optimizer's, then `again` on the copy, from the same hyper-parameters."""
        groups = optimizer.param_groups
        before = [dict(group) for group in groups]
        result = step()
        after, state = [dict(group) for group in groups], optimizer.state
        twin: Any = self.optimizers[self._original.optimizers.index(optimizer)]
        try:
            optimizer.state = twin.state
            for group, values, tensors in zip(groups, before, twin.groups, strict=True):
                group.clear()
                group.update({**values, "params": tensors})
            again()
        finally:
            optimizer.state = state
            for group, values in zip(groups, after, strict=True):
                group.clear()
                group.update(values)
        return result

    def _compare(self, group: LiveGroup) -> None:
        """Exchange the digests of shard and copy, both of the last committed step. Raises CopyDiffers."""
        mine = torch.frombuffer(bytearray(_digest(self._original) + _digest(self)), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in range(group.size())]
        group.allgather([found], [mine]).wait()
        if group.failed:
            return
        for rank, digests in enumerate(found):
            owner = (rank - 1) % len(found)
            if not torch.equal(digests[16:], found[owner][:16]):
                raise CopyDiffers(
                    f"the copy of rank {owner}'s shard on rank {rank} has parted from it: the optimizer does not "
                    "treat every element by itself; use replica groups, agent.mesh(replicas=2), with this optimizer"
                )


class _Gradients:
    """The gradients of some tensors in one buffer: a byte for each that says whether it has one, then their values."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors
        self._starts: list[int] = []
        end = _aligned(len(tensors))
        for tensor in tensors:
            self._starts.append(end)
            end += _aligned(local(tensor).nbytes)
        self.data = torch.zeros(end, dtype=torch.uint8)

    def pack(self) -> None:
        """Copy the tensors' gradients into the buffer."""
        for number, tensor in enumerate(self._tensors):
            self.data[number] = tensor.grad is not None
            if tensor.grad is not None:
                self._slot(number).copy_(local(tensor.grad))

    def unpack(self) -> None:
        """Give the tensors the gradients in the buffer: views on a CPU, copies elsewhere."""
        for number, tensor in enumerate(self._tensors):
            tensor.grad = self._slot(number).to(tensor.device) if self.data[number] else None

    def _slot(self, number: int) -> torch.Tensor:
        start, tensor = self._starts[number], local(self._tensors[number])
        return self.data[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)


def _aligned(size: int) -> int:
    return -(-size // 16) * 16


def _digest(registry: Registry) -> bytes:
    state = xxhash.xxh3_128()
    for leaf in registry.leaves():
        state.update(bytes_of(leaf.tensor.cpu().contiguous()))
    return state.digest()
