"""FSDP2 modules over a `RankMesh`: give a process another shard, and forget a step that was broken off.

A spare has sharded the model like rank 0. When it takes a rank, every parameter keeps its memory (all shards are
padded to the same size) and becomes the part that belongs to the rank; nothing is rebuilt. FSDP2 has no interface
for that, so `take_shard` sets fields of `FSDPParam` and its mesh; they are pinned by `tests/agent/test_hsdp.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from agent.mesh import RankMesh
from agent.state import local, optimized


def check_sharded(model: torch.nn.Module, mesh: RankMesh | None) -> None:
    """Raises ValueError with what to change if the model's sharding cannot be exact."""
    if mesh is None:
        raise ValueError("make the mesh with `mesh = agent.mesh(replicas=...)` and give it to every fully_shard()")
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            raise ValueError(f"{name} is not sharded; call fully_shard(model, mesh=mesh) on the root module too")
        if parameter.device_mesh is not mesh.device_mesh:
            raise ValueError(f"{name} is sharded over another mesh than the one of agent.mesh()")
    for parameter in _parameters(model):
        if type(parameter._sharded_param_data) is not torch.Tensor:
            raise ValueError(f"{parameter._param_fqn} is a tensor subclass, which cannot move to another worker")


def check_moments(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Raises ValueError for optimizer state that another shard could not take over; call after a step."""
    for optimizer in optimizers:
        for parameter in optimized(optimizer):
            if not isinstance(parameter, DTensor):
                continue
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor) and value.dim() and local(value).shape != local(parameter).shape:
                    raise ValueError(
                        f"{type(optimizer).__name__} keeps {key!r} in another shape than its parameter, which cannot "
                        "move between shards; use an optimizer whose state is shaped like its parameters"
                    )


def take_shard(model: torch.nn.Module, mesh: RankMesh, rank: int) -> None:
    """Make this process's part of `model` the one of `rank`. The values are garbage until they are received."""
    meshes: list[DeviceMesh] = []
    for parameter in _parameters(model):
        meshes += [parameter._shard_mesh, parameter._spmd_mesh, parameter._sharding_spec.mesh]
    mesh.take(rank, meshes)
    shard = mesh.shard_of(rank)
    for group in _groups(model):
        for info in (group.mesh_info, group.post_forward_mesh_info):
            if info is not None:
                info.shard_mesh_rank = shard
                if mesh.replicas > 1:
                    info.replicate_mesh_rank = rank // mesh.shards
    for parameter in _parameters(model):
        _take_part(parameter, shard, mesh.shards)


@torch.no_grad()
def _take_part(parameter: Any, shard: int, shards: int) -> None:
    dim = parameter.fsdp_placement.dim
    whole, slot = parameter._orig_size[dim], parameter.padded_sharded_param_size[dim]
    length = max(0, min(whole - shard * slot, slot))  # torch.chunk gives all but the last parts the same length
    padded = parameter._sharded_param_data.view(parameter.padded_sharded_param_size)
    local = padded.narrow(dim, 0, length)
    padded.narrow(dim, length, slot - length).zero_()
    parameter.sharded_size = local.size()
    parameter.contiguous_sharded_stride = local.stride()
    parameter.sharded_param._local_tensor = local
    parameter.sharded_param.grad = None


def forget_iteration(model: torch.nn.Module) -> None:
    """Nothing of a step that was broken off may enter the next: gathered parameters, partial gradients."""
    if not isinstance(model, FSDPModule):
        return
    if model._get_fsdp_state()._is_root is None:
        return  # it has not run yet
    model.reset_iter_state()
    for parameter in _parameters(model):
        parameter.unsharded_accumulated_grad = None
        if hasattr(parameter, "_unsharded_param"):
            parameter._unsharded_param.grad = None


def _groups(model: torch.nn.Module) -> Iterator[Any]:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            yield from module._get_fsdp_state()._fsdp_param_groups


def _parameters(model: torch.nn.Module) -> Iterator[Any]:
    for group in _groups(model):
        yield from group.fsdp_params
