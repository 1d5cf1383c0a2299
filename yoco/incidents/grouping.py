"""Which incidents tell of one root event. Pure: groups depend on the set of incidents, not on who reported first."""

import datetime
import uuid
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from yoco.incidents.triage import cause_precedence


@dataclass(frozen=True, slots=True)
class Member:
    """What grouping needs to know of one incident. `kind` is the one that its trigger allows.

    `window` is that of the terms of its contract year. `moved_to` is a person's decision, which no rule overrides.
    """

    id: uuid.UUID
    kind: str
    cause: str
    node: str
    started_at: datetime.datetime
    named: uuid.UUID | None
    moved_to: uuid.UUID | None
    window: datetime.timedelta

    @property
    def until(self) -> datetime.datetime:
        """The last instant at which another incident can begin and belong with this one."""
        return self.started_at + self.window


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

    Two incidents belong together when the later begins within the root event window of the earlier, and they are on
    one node or their reports name the same root event. Belonging is transitive. Names can only join: two names do not
    keep the incidents of one node apart. A planned move is no failure: it belongs only with planned moves. An incident
    that a person moved belongs only with others moved to the same place. (A workload that fails again for the same
    cause is a matter of counting, not of what happened: guarantee/rules.py.)
    """
    ordered = sorted(members, key=lambda member: (member.started_at, member.id))
    links = _Links(len(ordered))
    moved: dict[uuid.UUID, int] = {}
    # Of each place or name, the member whose window reaches furthest; what else reaches as far is joined to it already.
    furthest: dict[tuple[bool, str | uuid.UUID], int] = {}
    for index, member in enumerate(ordered):
        if member.moved_to is not None:
            links.join(moved.setdefault(member.moved_to, index), index)
            continue
        for place in (member.node, member.named):
            if not place:
                continue
            key = (member.kind == "planned", place)
            other = furthest.get(key)
            if other is not None and member.started_at <= ordered[other].until:
                links.join(other, index)
            if other is None or member.until >= ordered[other].until:
                furthest[key] = index
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
