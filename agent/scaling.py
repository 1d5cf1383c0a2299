"""Gradient scaling: what a GradScaler finds must be known, and equal on all ranks, before the commit gate.

`GradScaler.step` unscales the gradients and skips the optimizer where one is not finite. Under FSDP each rank sees
its own shards only, so the finding is shared here; and a copy of a neighbour's shard needs unscaled gradients. What
a scaler notes between `unscale_` and `update` is in no `state_dict`, so a step that is redone must forget it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch.amp.grad_scaler import OptState
from torch.distributed.tensor import DTensor

from agent.group import LiveGroup


@torch.no_grad()
def settle(scaler: Any, optimizers: Sequence[torch.optim.Optimizer], group: LiveGroup, *, sharded: bool) -> None:
    """Unscale what is not unscaled yet; with sharded parameters, let all ranks know what one has found."""
    if not scaler.is_enabled():
        return
    states = [scaler._per_optimizer_states[id(optimizer)] for optimizer in optimizers]
    for optimizer, state in zip(optimizers, states, strict=True):
        if state["stage"] is OptState.READY:
            scaler.unscale_(optimizer)
    if not sharded:
        return  # the gradients are equal on all ranks, hence what is found in them
    found = [value for state in states for value in state["found_inf_per_device"].values()]
    plain = [value.to_local() if isinstance(value, DTensor) else value for value in found]
    if plain:
        shared = torch.stack([value.float().cpu() for value in plain])
        options = c10d.AllreduceOptions()
        options.reduceOp = c10d.ReduceOp(c10d.ReduceOp.MAX)
        group.allreduce([shared], options).wait()
        for value, common in zip(plain, shared, strict=True):
            value.copy_(common)


def forget_step(thing: Any) -> None:
    """Drop what a scaler noted in a step that was broken off; other objects have no such notes."""
    notes = getattr(thing, "_per_optimizer_states", None)
    if notes is not None:
        notes.clear()
