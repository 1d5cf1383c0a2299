"""Who goes on from which version, and who receives it from whom. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Survivor:
    """A member that holds a rank and has said where it stands."""

    worker: str
    rank: int
    version: int
    prepared: bool
    node: str = ""
    leaving: bool = False


@dataclass(frozen=True)
class Plan:
    """The next epoch: its version, its members, and who must receive the state."""

    version: int
    ranks: dict[str, int]
    targets: dict[str, int]
    """Spares to be promoted, with the rank that each takes."""
    sources: tuple[str, ...]
    """Workers that hold the state of `version`, best first."""


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
) -> Plan:
    """The next epoch from what the survivors report.

    The version is the highest that anybody reached: a worker one behind that is in doubt (`prepared`) holds
    the gradients to catch up. Leaving workers give their rank to a spare and are the best source, since they
    do not train meanwhile; `distrusted` ones (their state arrived damaged) are the last.

    Raises StateLost, OutOfStep or NeedSpares.
    """
    if not survivors:
        raise StateLost("every worker that held the state is gone")
    version = max(survivor.version for survivor in survivors)
    for survivor in survivors:
        behind = version - survivor.version
        if behind > 1 or (behind == 1 and not survivor.prepared):
            raise OutOfStep(survivor.worker, f"at step {survivor.version} without the gradients of step {version}")
    ranks = {survivor.worker: survivor.rank for survivor in survivors if not survivor.leaving}
    vacant = sorted(set(range(world_size)) - set(ranks.values()))
    if len(vacant) > len(spares):
        raise NeedSpares(len(vacant) - len(spares))
    targets = dict(zip(spares, vacant, strict=False))
    current = [survivor for survivor in survivors if survivor.version == version]
    current.sort(key=lambda survivor: (survivor.worker in distrusted, not survivor.leaving, -survivor.rank))
    return Plan(version, ranks | targets, targets, tuple(survivor.worker for survivor in current))


def first_plan(survivors: Sequence[Survivor], spares: Sequence[str], world_size: int, digests: dict[str, str]) -> Plan:
    """The first epoch, where the initial states of the workers (`digests`) may differ.

    All begin with the state of the lowest rank; who was initialised alike receives nothing. Raises as `make_plan`.
    """
    plan = make_plan(survivors, spares, world_size)
    root = min(survivors, key=lambda survivor: survivor.rank).worker
    differing = {survivor.worker: survivor.rank for survivor in survivors if digests[survivor.worker] != digests[root]}
    return Plan(0, plan.ranks, plan.targets | differing, (root,))
