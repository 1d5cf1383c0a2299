"""Groups of some of the ranks, as replica groups need them, that follow the run's membership.

A run of `replicas` x `shards` ranks is a two-dimensional mesh: rank = replica x shards + shard. Every dimension
divides the ranks into rows, and a process sees the row that its rank is in. All collectives of a row belong to
the run's epoch: when one breaks, they all do. A spare poses as rank 0 until it is given a rank.

DeviceMesh has no way to change a process's place, so `RankMesh.take` sets its private fields; they are pinned by
`tests/agent/test_hsdp.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import GroupName

from agent import faults
from agent.group import LiveGroup
from agent.members import WHOLE, OwnedWork


class RowGroup(LiveGroup):
    """This rank's row of one mesh dimension; a view of the run's `LiveGroup`, which owns all states."""

    def __init__(self, whole: LiveGroup, name: str, rows: list[list[int]], rank: int) -> None:
        self._whole, self._name, self._rows = whole, name, rows
        self._counted: Counter[str] = Counter()
        self._counted_step = 0
        self.known_as = GroupName(name)
        """Its name in torch.distributed."""
        row = self._row(rank)
        super().__init__(row.index(rank), len(row))
        self.on_contribution = lambda tensor: whole.on_contribution(tensor)

    @property
    def group_name(self) -> GroupName:
        return self.known_as

    def getGroupName(self) -> GroupName:
        return self.known_as

    def _row(self, rank: int) -> list[int]:
        return next(row for row in self._rows if rank in row)

    def take(self, rank: int) -> None:
        """Be in the row of `rank` from now on."""
        row = self._row(rank)
        self._rank = row.index(rank)
        ranks = dist.distributed_c10d._world.pg_group_ranks[self]
        ranks.clear()
        ranks.update({member: index for index, member in enumerate(row)})

    def _issue(
        self,
        name: str,
        result: Any,
        start: Callable[[Any], Any],
        alone: Callable[[], None],
        *,
        finish: Callable[[], None] = lambda: None,
        part: str = WHOLE,
    ) -> OwnedWork:
        formed = self._whole.formed
        number = self._count(name) if formed else 0
        if formed:
            faults.at(name, bucket=number)
        work = self._whole._issue(name, result, start, alone, finish=finish, part=self._name)
        if formed:
            faults.at(f"in_{name}", bucket=number)
        return work

    def _count(self, name: str) -> int:
        """How many collectives of this kind the step has seen before this one."""
        if self._counted_step != faults.script.step:
            self._counted_step = faults.script.step
            self._counted.clear()
        self._counted[name] += 1
        return self._counted[name] - 1


class RankMesh:
    """The mesh of a run. `device_mesh` is what `fully_shard` takes; its last dimension shards."""

    def __init__(self, whole: LiveGroup, *, world_size: int, replicas: int, device_type: str = "cpu") -> None:
        """Raises ValueError if the ranks cannot be divided."""
        if replicas < 1 or world_size % replicas or world_size == replicas:
            raise ValueError(
                f"{world_size} ranks cannot form {replicas} replica groups of equal size with two or more ranks each"
            )
        if whole.partitions:
            raise ValueError("Agent.mesh() can be called once; use the same mesh for all modules")
        self._whole = whole
        self.replicas, self.shards = replicas, world_size // replicas
        places = torch.arange(world_size).view(replicas, self.shards)
        if whole.rank() < 0:
            whole._rank = 0  # torch wants a place in the mesh; Agent.rank still says -1
        partitions = {"shard": places.tolist()}
        if replicas > 1:
            partitions = {"replicate": places.t().tolist(), **partitions}
        self._groups = [RowGroup(whole, name, rows, whole.rank()) for name, rows in partitions.items()]
        for group in self._groups:
            self._announce(group)
        whole.partitions = partitions
        self.device_mesh = DeviceMesh.from_group(
            list(self._groups),
            device_type,
            mesh=places if replicas > 1 else places.view(-1),
            mesh_dim_names=tuple(partitions),
        )

    def _announce(self, group: RowGroup) -> None:
        """Make the group known to torch.distributed, which delegates the making to its default group."""

        def make(name: GroupName) -> RowGroup:
            group.known_as = name
            return group

        self._whole.make_row = make
        try:
            dist.new_group(group._row(self._whole.rank()), sort_ranks=False)
        finally:
            self._whole.make_row = None

    def shard_of(self, rank: int) -> int:
        """Which part of the state the rank holds."""
        return rank % self.shards

    def take(self, rank: int, meshes: Iterable[DeviceMesh]) -> None:
        """Give this process the place of `rank`, in the groups and in `meshes` (this one and its slices)."""
        self._whole._rank = rank
        for group in self._groups:
            group.take(rank)
        for mesh in {id(mesh): mesh for mesh in (self.device_mesh, *meshes)}.values():
            mesh._rank = rank
            mesh._coordinate_on_dim = mesh._compute_coordinate_on_dim()
