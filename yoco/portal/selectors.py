"""Lists that the customer's pages read, in order. Verdicts and figures come from guarantee, waste and credits."""

import datetime
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from django.db.models import Count, Exists, F, Max, OuterRef, Prefetch, Q, QuerySet, Value
from django.db.models.functions import Coalesce

from yoco.accounts.access import visible
from yoco.accounts.models import Role, User
from yoco.contracts.models import Contract, ContractYear
from yoco.contracts.selectors import year_terms
from yoco.core.clock import local_midnight, milliseconds_between
from yoco.core.days import local_day
from yoco.guarantee.models import Outcome
from yoco.guarantee.rules import counted_outcomes
from yoco.incidents.models import (
    AgentBoot,
    Comment,
    Decision,
    Dispute,
    Exclusion,
    Incident,
    Regrouping,
    RegroupingProposal,
)

PAGE_SIZE = 50


def contracts_listed(*, user: User) -> QuerySet[Contract]:
    """The contracts that `user` may see, with their organisation, their years (latest first in `years_listed`) and
    whether anything has ever come from an agent or an import (`is_heard`)."""
    years = Prefetch("years", ContractYear.objects.order_by("-number"), to_attr="years_listed")
    ours = {"contract": OuterRef("pk")}
    heard = Exists(AgentBoot.objects.filter(**ours)) | Exists(Incident.objects.filter(**ours))
    return (
        visible(Contract.objects.all(), principal=user)
        .annotate(is_heard=heard)
        .select_related("organisation")
        .prefetch_related(years)
        .order_by("organisation__name", "number")
    )


def years_of(*, contract: Contract, at: datetime.datetime) -> list[ContractYear]:
    """The contract's years that have begun at `at`, latest first; of a contract to come, its first."""
    return years_begun(years=list(ContractYear.objects.filter(contract=contract).order_by("-number")), at=at)


def years_begun(*, years: list[ContractYear], at: datetime.datetime) -> list[ContractYear]:
    """Of a contract's years, latest first, those that have begun; the first where none has."""
    return [year for year in years if year.starts_at <= at] or years[-1:]


def year_current(*, years: list[ContractYear], at: datetime.datetime) -> ContractYear | None:
    """Of a contract's years, latest first: the one that `at` falls in, else the last that has begun, else the first."""
    begun = [year for year in years if year.starts_at <= at]
    return begun[0] if begun else years[-1] if years else None


@dataclass(frozen=True, slots=True)
class IncidentPage:
    """One page of a list in order of time, newest first; the ids open the pages before and after it."""

    rows: list[Incident]  # each with `until_resumed_ms`
    newer_than: str
    older_than: str


@dataclass(frozen=True, slots=True)
class Freshness:
    """How well the service hears the agents of a contract at this moment."""

    last_heard_at: datetime.datetime | None
    live: int
    """Starts of an agent that were heard within the silence window and have not said that their run ended."""
    gaps: int
    """Those of which report numbers are missing that the service has asked back."""


def freshness(*, contract: Contract, window: datetime.timedelta, at: datetime.datetime) -> Freshness:
    """What the heartbeats of a contract tell at `at`. `window` is how long the terms let a run be silent."""
    missing = Q(gap_since__isnull=False, last_seq__gt=F("accounted_seq"))
    found = AgentBoot.objects.filter(contract=contract).aggregate(
        last=Max("last_seen_at"),
        live=Count("pk", filter=Q(run_ended_at=None, last_seen_at__gte=at - window)),
        gaps=Count("pk", filter=missing),
    )
    return Freshness(last_heard_at=found["last"], live=found["live"], gaps=found["gaps"])


COUNTED = "counted"
"""Stands for all outcomes that are in a year's ratio."""


@dataclass(frozen=True, slots=True)
class IncidentFilter:
    """What a reader asked to see of a contract year; empty means all. Days are the contract's, both included."""

    outcome: str = ""
    kind: str = ""
    """The kind that the evidence allows, as the year counts it."""
    since: datetime.date | None = None
    until: datetime.date | None = None
    where: str = ""
    """Part of the name of a workload, or of a node."""
    once: bool = False
    """Of the incidents that count as one failure only the one that stands for it: then the list is what a sum is of."""

    def __bool__(self) -> bool:
        return self != IncidentFilter()


def incidents_filtered(*, contract: Contract, year: ContractYear, wanted: IncidentFilter) -> QuerySet[Incident]:
    """Incidents of a contract year, found by the contract's time index so that a page costs the same on any volume,
    unless it is asked for few among many."""
    rows = (
        Incident.objects.filter(contract=contract, started_at__gte=year.starts_at)
        .select_related("run", "placement")
        .defer("placement__evidence", "placement__waste_terms")
    )
    if wanted.once:
        # A failure belongs to the year in which its first incident began; the one that stands for it may be later.
        rows = rows.filter(placement__year=year, placement__lead=True)
    else:
        rows = rows.filter(started_at__lt=year.ends_at)
    if wanted.since:
        rows = rows.filter(started_at__gte=local_midnight(wanted.since, contract.time_zone))
    if wanted.until:
        rows = rows.filter(started_at__lt=local_midnight(wanted.until + datetime.timedelta(days=1), contract.time_zone))
    if wanted.outcome == COUNTED:
        terms = year_terms(year=year)
        rows = rows.filter(placement__outcome__in=counted_outcomes(terms) if terms else [])
    elif wanted.outcome:
        rows = rows.filter(placement__outcome=wanted.outcome)
    if wanted.kind:
        rows = rows.filter(Q(placement__kind=wanted.kind) | Q(placement=None, kind=wanted.kind))
    if wanted.where:
        named = Q(run__name__icontains=wanted.where) | Q(run__run_id__icontains=wanted.where)
        rows = rows.filter(named | Q(node__icontains=wanted.where))
    return rows


def incidents_by_day(
    *, contract: Contract, year: ContractYear, wanted: IncidentFilter
) -> list[tuple[datetime.date, str, int]]:
    """How many of the incidents that a filter leaves began on each local day, by outcome; counted in the database."""
    day = local_day("started_at", time_zone=contract.time_zone, start=year.starts_at, end=year.ends_at)
    rows = incidents_filtered(contract=contract, year=year, wanted=wanted)
    placed = Coalesce("placement__outcome", Value(Outcome.PENDING.value))
    counted = rows.order_by().values(day=day, placed=placed).annotate(n=Count("pk"))
    return sorted((row["day"], row["placed"], row["n"]) for row in counted)


def incidents_page(
    *,
    contract: Contract,
    year: ContractYear,
    wanted: IncidentFilter,
    newer_than: Incident | None = None,
    older_than: Incident | None = None,
) -> IncidentPage:
    """One page of the incidents that a filter leaves."""
    rows = incidents_filtered(contract=contract, year=year, wanted=wanted)
    if newer_than is not None:
        after = Q(started_at__gt=newer_than.started_at) | Q(started_at=newer_than.started_at, pk__gt=newer_than.pk)
        found = list(rows.filter(after).order_by("started_at", "id")[: PAGE_SIZE + 1])
        more_newer, more_older = len(found) > PAGE_SIZE, True
        found = found[:PAGE_SIZE][::-1]
    else:
        if older_than is not None:
            rows = rows.filter(
                Q(started_at__lt=older_than.started_at) | Q(started_at=older_than.started_at, pk__lt=older_than.pk)
            )
        found = list(rows.order_by("-started_at", "-id")[: PAGE_SIZE + 1])
        more_newer, more_older = older_than is not None, len(found) > PAGE_SIZE
        found = found[:PAGE_SIZE]
    for row in found:
        row.until_resumed_ms = milliseconds_between(row.started_at, row.resumed_at)  # type: ignore[attr-defined]
    return IncidentPage(
        rows=found,
        newer_than=str(found[0].public_id) if found and more_newer else "",
        older_than=str(found[-1].public_id) if found and more_older else "",
    )


@dataclass(frozen=True, slots=True)
class Reviews:
    """What people said of an incident: decisions the latest first, comments as a conversation is read."""

    exclusions: list[Exclusion]
    disputes: list[Dispute]
    comments: list[Comment]

    @property
    def dispute_pending(self) -> Dispute | None:
        """The objection that waits for its decision."""
        return next((row for row in self.disputes if row.state == Decision.PENDING), None)


def reviews_of(*, incident: Incident) -> Reviews:
    """The exclusions, objections and comments of one incident, with the people in them."""
    return Reviews(
        exclusions=list(incident.exclusions.select_related("proposed_by", "decided_by").order_by("-proposed_at")),
        disputes=list(incident.disputes.select_related("raised_by", "decided_by").order_by("-raised_at")),
        comments=list(incident.comments.select_related("by")),
    )


@dataclass(frozen=True, slots=True)
class OneEvent:
    """The reports of one event: how many incidents tell of it, the first of the others, and who moved this one or
    proposes to."""

    size: int
    others: list[Incident]
    regroupings: list[Regrouping]
    proposals: list[RegroupingProposal]

    @property
    def unshown(self) -> int:
        """Others beyond those that are listed."""
        return self.size - 1 - len(self.others)


EVENT_SHOWN = 20


def event_of(*, incident: Incident) -> OneEvent:
    """What else tells of the root event of one incident, the earliest first, with where each is placed."""
    others = Incident.objects.none()
    if incident.root_event_id is not None:
        others = Incident.objects.filter(root_event=incident.root_event_id).exclude(pk=incident.pk)
    found = list(others.select_related("run", "placement").order_by("started_at", "pk")[: EVENT_SHOWN + 1])
    return OneEvent(
        size=1 + (others.count() if len(found) > EVENT_SHOWN else len(found)),
        others=found[:EVENT_SHOWN],
        regroupings=list(incident.regroupings.select_related("by")),
        proposals=list(incident.regrouping_proposals.select_related("proposed_by", "decided_by")),
    )


def is_member(*, user: User, contract: Contract) -> bool:
    """At least a member of the customer's organisation, who may object, comment and share; not an account manager."""
    if user.is_account_manager:
        return False
    mine = visible(Contract.objects.all(), principal=user, minimum=Role.MEMBER)
    return mine.filter(pk=contract.pk).exists()


def days_until(*, day: datetime.date, time_zone: str, at: datetime.datetime) -> int:
    """Whole local days from `at` to the midnight that begins `day`, counting today; 0 once it has passed."""
    return max(0, (day - at.astimezone(ZoneInfo(time_zone)).date()).days)
