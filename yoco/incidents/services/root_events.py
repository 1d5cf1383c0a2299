"""Keeping root events equal to what the grouping rules say of the incidents."""

import datetime
import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

from django.db.models import Q, QuerySet

from yoco.contracts.models import Contract, GuaranteeTerms
from yoco.incidents.grouping import Group, Member, group
from yoco.incidents.models import Incident, RootEvent
from yoco.incidents.triage import cause

MEMBER_COLUMNS = (
    "pk",
    "public_id",
    "run_id",
    "kind",
    "signal",
    "xid",
    "node",
    "rank",
    "started_at",
    "resumed_at",
    "root_event_named",
    "moved_to",
    "root_event_id",
)


@dataclass(frozen=True, slots=True)
class Windows:
    """How close incidents must be to belong together, from the terms in force at a time."""

    root_event: datetime.timedelta
    relapse: datetime.timedelta


def windows_by_date(contract: Contract) -> list[tuple[datetime.date, Windows]]:
    """The windows of each version of the terms by its first day; the defaults before the first version."""
    default = GuaranteeTerms()
    versions = [(datetime.date.min, default.root_event_window_s, default.relapse_window_minutes)]
    versions += (
        GuaranteeTerms.objects.filter(contract=contract)
        .order_by("effective_on")
        .values_list("effective_on", "root_event_window_s", "relapse_window_minutes")
    )
    return [
        (day, Windows(datetime.timedelta(seconds=seconds), datetime.timedelta(minutes=minutes)))
        for day, seconds, minutes in versions
    ]


def _windows_at(versions: list[tuple[datetime.date, Windows]], at: datetime.datetime, zone: ZoneInfo) -> Windows:
    if len(versions) <= 2:
        return versions[-1][1]
    day = at.astimezone(zone).date()
    return next(windows for first, windows in reversed(versions) if first <= day)


def _member(incident: Incident, windows: Windows) -> Member:
    return Member(
        id=incident.public_id,
        run=incident.run_id,
        kind=incident.kind,
        cause=cause(incident.signal, incident.xid),
        node=incident.node,
        rank=incident.rank,
        started_at=incident.started_at,
        ended_at=incident.resumed_at or incident.started_at,
        named=incident.root_event_named,
        moved_to=incident.moved_to,
        root_event_window=windows.root_event,
        relapse_window=windows.relapse,
    )


def _near(
    contract: Contract, incidents: Collection[Incident], versions: list[tuple[datetime.date, Windows]]
) -> QuerySet[Incident]:
    """Whatever could belong to one root event with any of these incidents directly."""
    reach = max(max(windows.root_event, windows.relapse) for _, windows in versions)
    first = min(incident.started_at for incident in incidents) - reach
    last = max(max(incident.started_at, incident.resumed_at or incident.started_at) for incident in incidents) + reach
    nodes = {incident.node for incident in incidents} - {""}
    runs = {incident.run_id for incident in incidents}
    named = {incident.root_event_named for incident in incidents} - {None}
    moved = {incident.moved_to for incident in incidents} - {None}
    condition = Q(started_at__range=(first, last)) & (Q(node__in=nodes) | Q(run_id__in=runs))
    condition |= Q(run_id__in=runs, started_at__lt=first, resumed_at__gte=first)
    if named:
        condition |= Q(root_event_named__in=named)
    if moved:
        condition |= Q(moved_to__in=moved)
    return Incident.objects.filter(condition, contract=contract)


@dataclass(slots=True)
class Regrouped:
    """Other incidents that changed their root event, and root events that nobody belongs to any more."""

    moved: list[Incident] = field(default_factory=list)
    emptied: set[uuid.UUID] = field(default_factory=set)


def root_events_assign(*, contract: Contract, incidents: Collection[Incident]) -> Regrouped:
    """Sets `root_event_id` on `incidents`, saved or not, and brings root events and other members up to date.

    The caller saves `incidents` and then drops what was emptied, in the same transaction and under `contract_lock`.
    A constant number of queries.
    """
    if not incidents:
        return Regrouped()
    zone = ZoneInfo(contract.time_zone)
    versions = windows_by_date(contract)
    own = {incident.public_id: incident for incident in incidents}
    touched = {incident.root_event_id for incident in incidents} - {None}
    near_roots = _near(contract, incidents, versions).exclude(root_event=None).values("root_event_id")
    others = {
        incident.public_id: incident
        for incident in Incident.objects.filter(
            Q(root_event_id__in=near_roots) | Q(root_event_id__in=touched), contract=contract
        ).only(*MEMBER_COLUMNS)
        if incident.public_id not in own
    }
    everyone = {**others, **own}
    groups = group(
        (_member(one, _windows_at(versions, one.started_at, zone)) for one in everyone.values()),
        contract_id=contract.pk,
    )
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
    return Regrouped(moved=moved, emptied=emptied)


def _root_events_save(contract: Contract, groups: Iterable[Group], *, emptied: set[uuid.UUID]) -> None:
    if emptied:
        # A name belongs to one root event; a successor takes it over.
        RootEvent.objects.filter(pk__in=emptied).update(named_id=None)
    RootEvent.objects.bulk_create(
        [
            RootEvent(
                id=one.id,
                contract=contract,
                named_id=one.named,
                node=one.node,
                cause=one.cause,
                first_at=one.first_at,
                last_at=one.last_at,
            )
            for one in groups
        ],
        update_conflicts=True,
        unique_fields=["id"],
        update_fields=["named_id", "node", "cause", "first_at", "last_at"],
    )


def root_events_drop(ids: Collection[uuid.UUID]) -> None:
    """Removes root events that have lost every member."""
    if ids:
        RootEvent.objects.filter(pk__in=ids, incidents=None).delete()
