"""Checks of sharding that need torch.distributed, without peers: run as `python -m tests.agent.one_process NAME`."""

import sys

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from agent.group import make_default_group
from agent.mesh import RankMesh
from agent.sharding import check_sharded, forget_iteration, take_shard


class Model(nn.Module):
    """Sizes that two and three shards cut unevenly, or leave a rank without anything."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 7)
        self.norm = nn.LayerNorm(7)
        self.head = nn.Linear(7, 1)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.body(values))).clone()


def sharded(rank: int) -> tuple[nn.Module, RankMesh]:
    group = make_default_group(rank, 6)
    mesh = RankMesh(group, world_size=6, replicas=2)
    torch.manual_seed(0)
    model = Model()
    fully_shard(model.body, mesh=mesh.device_mesh)
    fully_shard(model, mesh=mesh.device_mesh)
    return model, mesh


def describe(model: nn.Module, mesh: RankMesh) -> list[object]:
    found: list[object] = [mesh.device_mesh.get_coordinate(), mesh.device_mesh.get_local_rank("shard")]
    for state in [module._get_fsdp_state() for module in (model.body, model)]:
        for group in state._fsdp_param_groups:
            found += [group.mesh_info.shard_mesh_rank, group.mesh_info.replicate_mesh_rank]
            for parameter in group.fsdp_params:
                local = parameter.sharded_param.to_local()
                found += [tuple(parameter.sharded_size), tuple(local.shape), parameter.shard_mesh.get_coordinate()]
    return found


def places() -> None:
    """Take every place as a spare, and compare with a process that began there."""
    import multiprocessing

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.agent.one_process"])
    model, mesh = sharded(-1)
    model(torch.ones(2, 5)).sum().backward()
    for rank in (5, 0, 3, 1, 4, 2):
        take_shard(model, mesh, rank)
        forget_iteration(model)
        with context.Pool(1) as pool:
            expected = pool.apply(_from_the_beginning, (rank,))
        print("same" if describe(model, mesh) == expected else f"rank {rank}: {describe(model, mesh)} != {expected}")
        model(torch.ones(2, 5)).sum().backward()
        for parameter in model.parameters():
            assert parameter.grad.to_local().shape == parameter.to_local().shape


def _from_the_beginning(rank: int) -> list[object]:
    return describe(*sharded(rank))


def foreign_mesh() -> None:
    make_default_group(0, 4)
    try:
        init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    except RuntimeError as error:
        print(error)


def partly_sharded() -> None:
    group = make_default_group(0, 4)
    mesh = RankMesh(group, world_size=4, replicas=2)
    model = Model()
    fully_shard(model.body, mesh=mesh.device_mesh)
    fully_shard(model.norm, mesh=mesh.device_mesh)
    try:
        check_sharded(model, mesh)
    except ValueError as error:
        print(error)


def fields() -> None:
    model, mesh = sharded(0)
    check_sharded(model, mesh)
    for name in ("_rank", "_coordinate_on_dim", "_compute_coordinate_on_dim"):
        assert hasattr(mesh.device_mesh, name), name
    state = model._get_fsdp_state()
    assert state._is_root is None
    model(torch.ones(2, 5)).sum().backward()
    assert state._is_root is True
    (group,) = state._fsdp_param_groups
    for name in ("shard_mesh_rank", "replicate_mesh_rank"):
        assert isinstance(getattr(group.mesh_info, name), int), name
    needed = ["_orig_size", "padded_sharded_param_size", "_sharded_param_data", "sharded_size", "_unsharded_param"]
    needed += ["contiguous_sharded_stride", "sharded_param", "fsdp_placement", "unsharded_accumulated_grad"]
    for parameter in group.fsdp_params:
        for name in [*needed, "_shard_mesh", "_spmd_mesh", "_sharding_spec", "_param_fqn"]:
            assert hasattr(parameter, name), name
    model.reset_iter_state()
    print("all there")


if __name__ == "__main__":
    {"places": places, "foreign_mesh": foreign_mesh, "partly_sharded": partly_sharded, "fields": fields}[sys.argv[1]]()
