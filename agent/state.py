"""What moves to a spare: a manifest of tensors, and the small replicated state beside them.

Tensors (parameters, buffers, optimizer moments) are sent from and received into the live memory. Everything
irregular (parameter-group scalars, scheduler, scaler, user objects) is encoded once per committed step, at the
boundary: an aborted step may pollute the live objects, the snapshot stays clean and is what a peer gets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from agent import codec
from agent.history import History
from agent.scaling import forget_step


class StateMismatch(RuntimeError):
    """Two workers do not hold the same kind of state; the message names the first difference."""


@dataclass(frozen=True)
class Leaf:
    """One tensor of the manifest."""

    name: str
    tensor: torch.Tensor

    def describe(self) -> list[Any]:
        return [self.name, str(self.tensor.dtype).removeprefix("torch."), list(self.tensor.shape)]


class Registry:
    """The training state of this process, by name."""

    def __init__(self) -> None:
        self.models: list[torch.nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.replicated: dict[str, Any] = {}
        """Objects with `state_dict` that are equal on all ranks: schedulers, scaler, user state."""
        self.history = History()
        self.small = b""
        """The encoded small state as of the last committed step."""
        self._buffers: dict[str, torch.Tensor] = {}
        self._parameters: list[tuple[str, torch.Tensor]] = []

    def settle(self) -> None:
        """All models are complete. From here on their parameters are these: FSDP swaps others in while it computes."""
        self._parameters = [
            (f"model{index}.{name}", tensor)
            for index, model in enumerate(self.models)
            for name, tensor in model.named_parameters()
        ]

    # Tensors -------------------------------------------------------------------------------------------

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._parameters

    def local_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Their memory in this process."""
        for name, tensor in self._parameters:
            yield name, local(tensor)

    def buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        for index, model in enumerate(self.models):
            for name, tensor in model.named_buffers():
                yield f"model{index}.{name}", tensor

    def _moments(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Every entry of every optimizer's state: (name, the dict that holds it, its key)."""
        for index, optimizer in enumerate(self.optimizers):
            for number, parameter in enumerate(optimized(optimizer)):
                state = optimizer.state.get(parameter, {})
                for key in sorted(state):
                    yield f"optimizer{index}.{number}.{key}", state, key

    def leaves(self) -> list[Leaf]:
        """All tensors that make up the state of the last committed step, in a fixed order.

        Buffers are those of the last boundary: a forward pass may have changed the live ones since.
        """
        found = [Leaf(name, local(tensor)) for name, tensor in self.parameters()]
        found += self.buffer_leaves()
        found += [
            Leaf(name, local(state[key]))
            for name, state, key in self._moments()
            if isinstance(state[key], torch.Tensor)
        ]
        return found

    def buffer_leaves(self) -> list[Leaf]:
        """The buffers among `leaves`."""
        return [Leaf(name, self._buffers.get(name, live).detach()) for name, live in self.buffers()]

    def manifest(self) -> list[list[Any]]:
        return [leaf.describe() for leaf in self.leaves()]

    def prepare(self, manifest: list[list[Any]]) -> list[Leaf]:
        """Tensors of this process that match a peer's manifest, to be overwritten in place.

        Parameters and buffers must exist; optimizer state is kept where it fits and made where it is missing.
        Raises StateMismatch naming the first difference.
        """
        models = dict(self.parameters())
        buffers = dict(self.buffers())
        moments = {name: state[key] for name, state, key in self._moments()}
        wanted: dict[tuple[int, int], dict[str, torch.Tensor]] = {}
        leaves: list[Leaf] = []
        for name, dtype, shape in manifest:
            here = models.pop(name, None)
            if here is None:
                here = buffers.pop(name, None)
            if here is None and name.startswith("optimizer"):
                index, number, key = name.removeprefix("optimizer").split(".", 2)
                here = moments.get(name)
                if here is None or Leaf(name, local(here)).describe() != [name, dtype, shape]:
                    here = self._new_moment(int(index), int(number), getattr(torch, dtype), shape)
                wanted.setdefault((int(index), int(number)), {})[key] = here
            if here is None or Leaf(name, local(here)).describe() != [name, dtype, shape]:
                mine = "nothing" if here is None else Leaf(name, local(here)).describe()[1:]
                raise StateMismatch(f"the peer has {name} as {dtype} {shape}, this worker has {mine}")
            leaves.append(Leaf(name, local(here)))
        if missing := [*models, *buffers]:
            raise StateMismatch(f"this worker has {missing[0]}, which the peer does not have")
        for index, optimizer in enumerate(self.optimizers):
            optimizer.state.clear()
            for number, parameter in enumerate(optimized(optimizer)):
                if (index, number) in wanted:
                    optimizer.state[parameter] = wanted[index, number]
        return leaves

    def _new_moment(self, index: int, number: int, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
        parameter = optimized(self.optimizers[index])[number]
        device = parameter.device if len(shape) else torch.device("cpu")
        made = torch.zeros(shape, dtype=dtype, device=device)
        if not shape or not isinstance(parameter, DTensor):
            return made
        if list(local(parameter).shape) != shape:
            raise StateMismatch(
                f"optimizer {index} keeps state of shape {shape} for a sharded parameter of local shape "
                f"{list(local(parameter).shape)}; only state that is shaped like its parameter can move"
            )
        mesh, placements = parameter.device_mesh, parameter.placements
        return DTensor.from_local(
            made, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
        )

    # Small state -----------------------------------------------------------------------------------------

    def snapshot(self) -> None:
        """Encode the small state and keep the buffers. Only after a committed step, never after an aborted
        one. Raises codec.CannotMove naming what cannot move."""
        groups = [
            [{key: value for key, value in group.items() if key != "params"} for group in each.param_groups]
            for each in self.optimizers
        ]
        objects = {name: thing.state_dict() for name, thing in self.replicated.items()}
        self.small = codec.encode({"groups": groups, "scalars": self.scalars(), "objects": objects}, "registered")
        for name, live in self.buffers():
            kept = self._buffers.get(name)
            if kept is None or kept.shape != live.shape or kept.dtype != live.dtype:
                self._buffers[name] = live.detach().clone()
            else:
                kept.copy_(live.detach())

    def restore(self) -> None:
        """Bring live objects and buffers back to the last snapshot, and drop gradients."""
        small = codec.decode(self.small)
        for optimizer, groups in zip(self.optimizers, small["groups"], strict=True):
            for group, saved in zip(optimizer.param_groups, groups, strict=True):
                group.update(saved)
            optimizer.zero_grad(set_to_none=True)
        self.restore_scalars(small["scalars"])
        for name, thing in self.replicated.items():
            thing.load_state_dict(small["objects"][name])
            forget_step(thing)
        for name, live in self.buffers():
            if name in self._buffers:
                live.detach().copy_(self._buffers[name])

    def scalars(self) -> dict[str, Any]:
        """What optimizers keep beside tensors."""
        return {name: state[key] for name, state, key in self._moments() if not isinstance(state[key], torch.Tensor)}

    def restore_scalars(self, scalars: dict[str, Any]) -> None:
        """The inverse of `scalars`."""
        for name, value in scalars.items():
            index, number, key = name.removeprefix("optimizer").split(".", 2)
            optimizer = self.optimizers[int(index)]
            optimizer.state[optimized(optimizer)[int(number)]][key] = value

    def export(self) -> bytes:
        """Everything that goes beside the tensors to a peer."""
        return codec.encode({"small": self.small, "history": self.history.state_dict()})

    def received(self, exported: bytes) -> None:
        """The tensors from `prepare` now hold a peer's state, and `exported` is what belongs to it."""
        parts = codec.decode(exported)
        self.small = parts["small"]
        self.history.load_state_dict(parts["history"])
        self._buffers = {name: live.detach().clone() for name, live in self.buffers()}


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor that lies in this process: of a sharded one, this rank's part."""
    plain = tensor.detach()
    return plain.to_local() if isinstance(plain, DTensor) else plain


def optimized(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The optimizer's parameters, in order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def layout(registry: Registry, buckets: list[list[int]]) -> str:
    """What must be equal on all workers before they may reduce together, as one line of JSON."""
    shapes = [Leaf(name, tensor).describe() for name, tensor in registry.parameters()]
    return json.dumps({"parameters": shapes, "buckets": buckets}, separators=(",", ":"))
