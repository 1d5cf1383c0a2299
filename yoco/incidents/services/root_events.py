"""Keeping root events equal to what the grouping rules say of the incidents."""

import datetime
import uuid
from collections.abc import Collection, Iterable
from zoneinfo import ZoneInfo

from django.db.models import Q, QuerySet

from yoco.contracts.models import Contract, GuaranteeTerms
from yoco.incidents.grouping import Group, Member, group
from yoco.incidents.models import Incident, RootEvent
from yoco.incidents.triage import cause

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
Windows = list[tuple[datetime.date, datetime.timedelta]]


def _windows(contract: Contract) -> Windows:
    """The root event window of each version of the terms by its first day; the default before the first version."""
    versions = [(datetime.date.min, GuaranteeTerms().root_event_window_s)]
    versions += (
        GuaranteeTerms.objects.filter(contract=contract)
        .order_by("effective_on")
        .values_list("effective_on", "root_event_window_s")
    )
    return [(day, datetime.timedelta(seconds=seconds)) for day, seconds in versions]


def _member(incident: Incident, windows: Windows, zone: ZoneInfo) -> Member:
    day = incident.started_at.astimezone(zone).date()
    return Member(
        id=incident.public_id,
        kind=incident.kind,
        cause=cause(incident.signal, incident.xid),
        node=incident.node,
        started_at=incident.started_at,
        named=incident.root_event_named,
        moved_to=incident.moved_to,
        window=next(window for first, window in reversed(windows) if first <= day),
    )


def _near(contract: Contract, incidents: Collection[Incident], windows: Windows) -> QuerySet[Incident]:
    """Whatever could belong to one root event with any of these incidents directly."""
    reach = max(window for _, window in windows)
    condition = Q(
        node__in={incident.node for incident in incidents} - {""},
        started_at__range=(
            min(incident.started_at for incident in incidents) - reach,
            max(incident.started_at for incident in incidents) + reach,
        ),
    )
    if named := {incident.root_event_named for incident in incidents} - {None}:
        condition |= Q(root_event_named__in=named)
    if moved := {incident.moved_to for incident in incidents} - {None}:
        condition |= Q(moved_to__in=moved)
    return Incident.objects.filter(condition, contract=contract)


def root_events_assign(*, contract: Contract, incidents: Collection[Incident]) -> list[Incident]:
    """Sets `root_event_id` on `incidents`, saved or not, and brings root events and their other members up to date.

    Returns the other incidents that changed their root event, already updated; the caller saves `incidents`, in the
    same transaction and under `contracts_lock`. A constant number of queries. A root event that lost all its members
    stays as an empty row: placements may still refer to it.
    """
    if not incidents:
        return []
    zone = ZoneInfo(contract.time_zone)
    windows = _windows(contract)
    own = {incident.public_id: incident for incident in incidents}
    touched = {incident.root_event_id for incident in incidents} - {None}
    near_roots = _near(contract, incidents, windows).exclude(root_event=None).values("root_event_id")
    others = {
        incident.public_id: incident
        for incident in Incident.objects.filter(
            Q(root_event_id__in=near_roots) | Q(root_event_id__in=touched), contract=contract
        ).only(*MEMBER_COLUMNS)
        if incident.public_id not in own
    }
    everyone = {**others, **own}
    groups = group((_member(incident, windows, zone) for incident in everyone.values()), contract_id=contract.pk)
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
