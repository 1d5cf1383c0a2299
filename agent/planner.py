"""Who goes on from which version, and who receives it from whom. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Survivor:
    """A member that holds a rank and has said where it stands."""

    worker: str
    rank: int
    version: int
    prepared: bool
    node: str = ""
    leaving: bool = False
    has_copy: bool = True
    """It has received the copy that it keeps of another rank's part, where it must keep one."""


@dataclass(frozen=True)
class Sharding:
    """Which part of the state each rank holds."""

    parts: tuple[int, ...]
    """By rank; ranks of the same part hold identical copies of it."""
    copied: bool = False
    """Each rank also keeps a copy of the part of the rank before it (see `agent.redundancy`)."""

    @classmethod
    def none(cls, world_size: int) -> Sharding:
        """Every rank holds everything."""
        return cls((0,) * world_size)

    def before(self, rank: int) -> int:
        """The rank whose part `rank` keeps a copy of."""
        return (rank - 1) % len(self.parts)


Part = Literal["own", "copy"]
Holder = tuple[str, Part]
"""A worker, and whether it holds the state as its own or as the copy of another rank's."""


@dataclass(frozen=True)
class Plan:
    """The next epoch: its version, its members, and who must receive the state."""

    version: int
    ranks: dict[str, int]
    targets: dict[str, int]
    """Spares to be promoted, with the rank that each takes."""
    sources: tuple[str, ...]
    """Workers that stand at `version`, best first."""
    holders: dict[str, tuple[Holder, ...]]
    """Who can send each target its state, best first."""
    copies: dict[str, tuple[Holder, ...]]
    """Who can send each member the state that it must keep a copy of, if it has none."""


class NeedSpares(Exception):
    """The plan lacks `count` spares."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} more needed")
        self.count = count


class OutOfStep(Exception):
    """A survivor is where no survivor can be; it must be replaced like a lost one."""

    def __init__(self, worker: str, reason: str) -> None:
        super().__init__(reason)
        self.worker = worker


class StateLost(Exception):
    """No worker holds the state any more."""


def make_plan(
    survivors: Sequence[Survivor],
    spares: Sequence[str],
    world_size: int,
    *,
    distrusted: frozenset[str] = frozenset(),
    sharding: Sharding | None = None,
    shrink: bool = False,
) -> Plan:
    """The next epoch from what the survivors report.

    The version is the highest that anybody reached: a worker one behind that is in doubt (`prepared`) holds
    the gradients to catch up. Leaving workers give their rank to a spare and are the best source, since they
    do not train meanwhile; `distrusted` ones (their state arrived damaged) are the last. With `shrink` ranks may
    stay vacant, but not rank 0, on which scripts save: the highest rank becomes rank 0 then.

    Raises StateLost, OutOfStep or NeedSpares.
    """
    if not survivors:
        raise StateLost("every worker that held the state is gone")
    version = max(survivor.version for survivor in survivors)
    for survivor in survivors:
        behind = version - survivor.version
        if behind > 1 or (behind == 1 and not survivor.prepared):
            raise OutOfStep(survivor.worker, f"at step {survivor.version} without the gradients of step {version}")
    sharding = sharding or Sharding.none(world_size)
    ordered = sorted(
        survivors, key=lambda each: (each.worker in distrusted, each.version != version, not each.leaving, -each.rank)
    )
    for rank in range(world_size):
        if not holders_of(rank, ordered, sharding):
            raise StateLost(f"every worker that held rank {rank}'s part of the state is gone")
    ranks = {survivor.worker: survivor.rank for survivor in survivors if not survivor.leaving}
    vacant = sorted(set(range(world_size)) - set(ranks.values()))
    if len(vacant) > len(spares):
        if not shrink or not ranks:
            raise NeedSpares(len(vacant) - len(spares))
        if vacant[0] == 0 and not spares:
            ranks[max(ranks, key=lambda worker: ranks[worker])] = 0
    targets = dict(zip(spares, vacant, strict=False))
    holders = {worker: holders_of(rank, ordered, sharding) for worker, rank in targets.items()}
    members = ranks | targets
    copies = {worker: holders_of(sharding.before(rank), ordered, sharding) for worker, rank in members.items()}
    return Plan(
        version,
        members,
        targets,
        tuple(survivor.worker for survivor in ordered if survivor.version == version),
        holders,
        copies if sharding.copied else {},
    )


def holders_of(rank: int, ordered: Sequence[Survivor], sharding: Sharding) -> tuple[Holder, ...]:
    """Who has the rank's part. A worker in doubt has it too, as soon as it has caught up."""
    part = sharding.parts[rank]
    own: list[Holder] = [(each.worker, "own") for each in ordered if sharding.parts[each.rank] == part]
    if not sharding.copied:
        return tuple(own)
    return (*own, *((each.worker, "copy") for each in ordered if each.has_copy and sharding.before(each.rank) == rank))


def first_plan(
    survivors: Sequence[Survivor],
    spares: Sequence[str],
    world_size: int,
    digests: dict[str, str],
    sharding: Sharding | None = None,
) -> Plan:
    """The first epoch, where the initial states of the workers (`digests`) may differ.

    All that hold a part begin with that of the lowest rank; who was initialised alike receives nothing. Raises as
    `make_plan`.
    """
    sharding = sharding or Sharding.none(world_size)
    plan = make_plan(survivors, spares, world_size, sharding=sharding)
    roots: dict[int, str] = {}
    for survivor in sorted(survivors, key=lambda survivor: survivor.rank):
        roots.setdefault(sharding.parts[survivor.rank], survivor.worker)
    targets = plan.targets | {
        survivor.worker: survivor.rank
        for survivor in survivors
        if digests[survivor.worker] != digests[roots[sharding.parts[survivor.rank]]]
    }
    holders = dict(plan.holders)
    for worker, rank in targets.items():
        if sharding.parts[rank] in roots:
            holders[worker] = ((roots[sharding.parts[rank]], "own"),)
    return Plan(0, plan.ranks, targets, tuple(roots.values()), holders, plan.copies)
