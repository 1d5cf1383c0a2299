"""Which incidents tell of one root event. Pure: groups depend on the set of incidents, not on who reported first."""

import datetime
import uuid
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from yoco.incidents.triage import cause_precedence


@dataclass(frozen=True, slots=True)
class Member:
    """What grouping needs to know of one incident. `moved_to` is a person's decision, which no rule overrides."""

    id: uuid.UUID
    kind: str
    cause: str
    node: str
    started_at: datetime.datetime
    named: uuid.UUID | None
    moved_to: uuid.UUID | None
    window: datetime.timedelta


@dataclass(frozen=True, slots=True)
class Group:
    """One root event. Its id follows from its first member, so that the same incidents always give the same id.

    Two groups further apart than the window can have the same `named`.
    """

    id: uuid.UUID
    named: uuid.UUID | None
    node: str
    cause: str
    first_at: datetime.datetime
    last_at: datetime.datetime
    members: tuple[uuid.UUID, ...]


def group(members: Iterable[Member], *, contract_id: uuid.UUID) -> list[Group]:
    """The root events of these incidents of one contract.

    Two incidents belong together when they begin within the root event window and their reports name the same root
    event, or they are of one kind, on one node and not named apart. Belonging is transitive. An incident that a
    person moved belongs only with others moved to the same place. (A workload that fails again for the same cause is
    a matter of counting, not of what happened: guarantee/rules.py.)
    """
    ordered = sorted(members, key=lambda member: (member.started_at, member.id))
    links = _Links(len(ordered))
    moved: dict[uuid.UUID, int] = {}
    named: dict[uuid.UUID, int] = {}
    by_node: dict[tuple[str, str], dict[uuid.UUID | None, int]] = defaultdict(dict)
    for index, member in enumerate(ordered):
        if member.moved_to is not None:
            links.join(moved.setdefault(member.moved_to, index), index)
            continue
        if member.named is not None:
            # A name has no end of its own: without the window one id would make a year's failures one.
            other = named.get(member.named, index)
            if member.started_at - ordered[other].started_at <= member.window:
                links.join(other, index)
            named[member.named] = index
        if member.node:
            # Of each name only the latest matters: earlier ones are joined to it or out of the window.
            latest = by_node[member.kind, member.node]
            for name, other in latest.items():
                apart = name is not None and member.named is not None and name != member.named
                if not apart and member.started_at - ordered[other].started_at <= member.window:
                    links.join(other, index)
            latest[member.named] = index
    return [_group([ordered[index] for index in indexes], contract_id) for indexes in links.sets()]


def _group(members: list[Member], contract_id: uuid.UUID) -> Group:
    root = min(members, key=lambda member: (cause_precedence(member.cause), member.started_at, member.id))
    return Group(
        id=uuid.uuid5(contract_id, str(members[0].id)),
        named=min((member.named for member in members if member.named and not member.moved_to), default=None),
        node=root.node,
        cause=root.cause,
        first_at=members[0].started_at,
        last_at=max(member.started_at for member in members),
        members=tuple(member.id for member in members),
    )


class _Links:
    """Disjoint sets of indexes; the smallest index stands for its set."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def _find(self, index: int) -> int:
        while self._parent[index] != index:
            self._parent[index] = index = self._parent[self._parent[index]]
        return index

    def join(self, one: int, other: int) -> None:
        low, high = sorted((self._find(one), self._find(other)))
        self._parent[high] = low

    def sets(self) -> list[list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for index in range(len(self._parent)):
            found[self._find(index)].append(index)
        return list(found.values())
