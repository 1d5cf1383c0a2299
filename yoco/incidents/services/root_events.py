"""Keeping root events equal to what the grouping rules say of the incidents."""

import datetime
import uuid
from collections.abc import Callable, Collection

from django.db.models import Q, QuerySet

from yoco.contracts.models import Contract, GuaranteeTerms
from yoco.contracts.selectors import YearlyTerms, yearly_terms
from yoco.core.bulk import rows_write
from yoco.core.compiled import compiled
from yoco.incidents.grouping import Group, Member, group
from yoco.incidents.models import Incident, RootEvent
from yoco.incidents.triage import cause
from yoco.incidents.trigger import kind_evidenced

MEMBER_COLUMNS = (
    "pk",
    "public_id",
    "kind",
    "signal",
    "xid",
    "node",
    "started_at",
    "root_event_named",
    "moved_to",
    "root_event_id",
)


def root_event_windows(*, contract: Contract) -> Callable[[datetime.datetime], datetime.timedelta]:
    """The root event window at an instant: that of the terms which govern its contract year. Two queries."""
    terms = yearly_terms(contract=contract)
    return lambda at: _window(terms.at(at))


def _window(terms: GuaranteeTerms) -> datetime.timedelta:
    return datetime.timedelta(seconds=terms.root_event_window_s)


def _member(incident: Incident, terms: YearlyTerms) -> Member:
    return Member(
        id=incident.public_id,
        kind=kind_evidenced(incident.kind, signal=incident.signal, xid=incident.xid),  # type: ignore[arg-type]
        cause=cause(incident.signal, incident.xid),
        node=incident.node,
        started_at=incident.started_at,
        named=incident.root_event_named,
        moved_to=incident.moved_to,
        window=_window(terms.at(incident.started_at)),
    )


def _near_roots(contract: Contract, incidents: Collection[Incident], terms: YearlyTerms) -> set[uuid.UUID]:
    """The root events of whatever could belong directly with any of these incidents.

    Ids, not a subquery, and no OR: each of these has an index of its own, and a planner that joins them reads a
    contract's incidents once for each of its incidents.
    """
    reach = max(_window(version) for version in terms.versions)
    times = [incident.started_at for incident in incidents]
    near = _roots_on(
        contract_id=contract.pk,
        nodes={incident.node for incident in incidents} - {""},
        since=min(times) - reach,
        until=max(times) + reach,
    )
    if named := {incident.root_event_named for incident in incidents if incident.root_event_named is not None}:
        near += _roots_named(contract_id=contract.pk, named=named)
    if moved := {incident.moved_to for incident in incidents if incident.moved_to is not None}:
        near += _roots_moved(contract_id=contract.pk, moved=moved)
    return {root for root in near if root is not None}


def _roots(contract_id: uuid.UUID) -> QuerySet[Incident]:
    return Incident.objects.filter(contract=contract_id, root_event__isnull=False).order_by()


@compiled
def _roots_on(
    *, contract_id: uuid.UUID, nodes: Collection[str], since: datetime.datetime, until: datetime.datetime
) -> QuerySet[Incident, uuid.UUID | None]:
    near = _roots(contract_id).filter(node__in=nodes, started_at__range=(since, until))
    return near.values_list("root_event_id", flat=True)


@compiled
def _roots_named(*, contract_id: uuid.UUID, named: Collection[uuid.UUID]) -> QuerySet[Incident, uuid.UUID | None]:
    return _roots(contract_id).filter(root_event_named__in=named).values_list("root_event_id", flat=True)


@compiled
def _roots_moved(*, contract_id: uuid.UUID, moved: Collection[uuid.UUID]) -> QuerySet[Incident, uuid.UUID | None]:
    return _roots(contract_id).filter(moved_to__in=moved).values_list("root_event_id", flat=True)


@compiled
def _members_of(*, roots: Collection[uuid.UUID]) -> QuerySet[Incident]:
    return Incident.objects.filter(root_event_id__in=roots).only(*MEMBER_COLUMNS)


def root_events_assign(*, contract: Contract, incidents: Collection[Incident]) -> list[Incident]:
    """Sets `root_event_id` on `incidents`, saved or not, and brings root events and their other members up to date.

    Returns the other incidents that changed their root event, already updated; the caller saves `incidents`, in the
    same transaction and under `contracts_lock`. The number of queries does not depend on how many are given. A root
    event that lost all its members stays as an empty row: placements may still refer to it.
    """
    if not incidents:
        return []
    terms = yearly_terms(contract=contract)
    own = {incident.public_id: incident for incident in incidents}
    touched = {incident.root_event_id for incident in incidents if incident.root_event_id is not None}
    roots = _near_roots(contract, incidents, terms) | touched
    others = {incident.public_id: incident for incident in _members_of(roots=roots) if incident.public_id not in own}
    everyone = {**others, **own}
    groups = group((_member(incident, terms) for incident in everyone.values()), contract_id=contract.pk)
    before = {incident.root_event_id for incident in everyone.values() if incident.root_event_id is not None}
    emptied = before - {one.id for one in groups}
    _root_events_save(contract, groups, emptied=emptied)
    moved = []
    for one in groups:
        for member in one.members:
            incident = everyone[member]
            if incident.root_event_id != one.id:
                incident.root_event_id = one.id
                if member in others:
                    moved.append(incident)
    if moved:
        Incident.objects.bulk_update(moved, ["root_event"])
    return moved


def _names_award(
    contract: Contract, groups: Collection[Group], *, emptied: set[uuid.UUID]
) -> dict[uuid.UUID, uuid.UUID]:
    """The root event that bears each name: the first of those that want it. All others are free of it afterwards."""
    names = {one.named for one in groups if one.named is not None}
    if not names and not emptied:
        return {}
    ours = {one.id for one in groups} | emptied
    first = {
        name: (first_at, pk)
        for name, first_at, pk in RootEvent.objects.filter(contract=contract, named_id__in=names)
        .exclude(pk__in=ours)
        .values_list("named_id", "first_at", "pk")
        if name is not None
    }
    for one in groups:
        if one.named is not None:
            first[one.named] = min(first.get(one.named, (one.first_at, one.id)), (one.first_at, one.id))
    bearers = {name: pk for name, (_, pk) in first.items()}
    # The database checks a name row by row, so whoever held one gives it up before another takes it.
    held = RootEvent.objects.filter(Q(pk__in=ours) | Q(named_id__in=names), contract=contract, named_id__isnull=False)
    held.exclude(pk__in=set(bearers.values()) - ours).update(named_id=None)
    return bearers


def _root_events_save(contract: Contract, groups: Collection[Group], *, emptied: set[uuid.UUID]) -> None:
    bearers = _names_award(contract, groups, emptied=emptied)
    rows_write(
        [
            RootEvent(
                id=one.id,
                contract=contract,
                named_id=one.named if one.named and bearers[one.named] == one.id else None,
                node=one.node,
                cause=one.cause,
                first_at=one.first_at,
                last_at=one.last_at,
            )
            for one in groups
        ],
        unique=("id",),
        update=("named_id", "node", "cause", "first_at", "last_at"),
    )
