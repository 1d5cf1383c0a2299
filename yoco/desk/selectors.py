"""What the desk's lists read."""

import datetime
import uuid
from dataclasses import dataclass

from django.db.models import Count, Exists, Min, OuterRef, Q, QuerySet, Subquery
from django.utils import timezone
from django.utils.translation import ngettext

from yoco.contracts.models import Contract, ContractYear, YearState
from yoco.credits.models import Credit, CreditState
from yoco.guarantee.models import Outcome, Placement, Statement
from yoco.guarantee.rules import Tally, failures_still_allowed, share_floor
from yoco.guarantee.tally import year_rules, year_verdict, years_tally
from yoco.incidents.models import Comment, Decision, Dispute, Exclusion, Incident, RegroupingProposal, RootEvent


def credits_waiting() -> QuerySet[Credit]:
    """Credits to issue and to approve, and those that a later statement puts in question; oldest first."""
    decide = Q(state__in=[CreditState.PROPOSED, CreditState.ISSUED])
    return (
        Credit.objects.filter(decide | Q(review_since__isnull=False))
        .select_related("year__contract__organisation", "issued_by")
        .order_by("proposed_at", "id")
    )


def years_closing() -> QuerySet[ContractYear]:
    """Years that ended and wait for late reports, the earliest end first."""
    return (
        ContractYear.objects.filter(state=YearState.CLOSING)
        .select_related("contract__organisation")
        .order_by("ends_at", "id")
    )


def years_stated(*, contract: Contract) -> QuerySet[ContractYear]:
    """A contract's years, the latest first, each with the `revision` and `verdict` of its latest statement, if any."""
    latest = Statement.objects.filter(year=OuterRef("pk")).order_by("-revision")
    return (
        ContractYear.objects.filter(contract=contract)
        .annotate(revision=Subquery(latest.values("revision")[:1]), verdict=Subquery(latest.values("verdict")[:1]))
        .order_by("-number")
    )


def disputes_open() -> QuerySet[Dispute]:
    """Disputes that wait for a decision, oldest first."""
    return (
        Dispute.objects.filter(state=Decision.PENDING)
        .select_related("incident__contract__organisation", "incident__run", "raised_by")
        .order_by("raised_at", "id")
    )


def comments_unanswered(*, limit: int = 20) -> list[Comment]:
    """What customers wrote last on an incident, if no account manager has written after it; the longest waiting first.

    One line for each incident.
    """
    later = Comment.objects.filter(incident=OuterRef("incident"), id__gt=OuterRef("id"))
    return list(
        Comment.objects.filter(~Exists(later), by_desk=False)
        .select_related("incident__contract", "incident__run", "by")
        .order_by("at", "id")[:limit]
    )


# Verdicts by how soon somebody should look.
RISK = {"short": 0, "undecided": 1, "met": 2, "no_failures": 3}


def exclusions_proposed() -> QuerySet[Exclusion]:
    """Exclusions that wait for a second person, oldest first."""
    return (
        Exclusion.objects.filter(state=Decision.PENDING)
        .select_related("incident__contract__organisation", "incident__run", "proposed_by")
        .order_by("proposed_at", "id")
    )


def regroupings_proposed() -> QuerySet[RegroupingProposal]:
    """Regroupings that wait for a second person, oldest first."""
    return (
        RegroupingProposal.objects.filter(state=Decision.PENDING)
        .select_related("contract", "proposed_by")
        .order_by("proposed_at", "id")
    )


def unaccounted_running(*, limit: int = 20) -> list[Placement]:
    """Workloads that went silent in a year that is not closed, the latest first: somebody should ask the customer."""
    return list(
        Placement.objects.filter(outcome=Outcome.UNACCOUNTED, lead=True)
        .exclude(year__state=YearState.CLOSED)
        .select_related("incident__contract", "incident__run")
        .order_by("-started_at", "-pk")[:limit]
    )


EVENTS_SHOWN = 30


def events_near(*, incident: Incident) -> list[tuple[uuid.UUID, str]]:
    """Root events of the contract that began within a day of an incident, the nearest first, each with its name."""
    reach = datetime.timedelta(days=1)
    rows = (
        RootEvent.objects.filter(
            contract=incident.contract_id,
            first_at__range=(incident.started_at - reach, incident.started_at + reach),
        )
        .exclude(incidents=incident)
        .annotate(reports=Count("incidents"), workload=Min("incidents__run__run_id"))
        .filter(reports__gt=0)
    )
    nearest = sorted(rows, key=lambda row: (abs(row.first_at - incident.started_at), row.pk))[:EVENTS_SHOWN]
    return [(row.pk, _event_name(row)) for row in nearest]


def _event_name(row: RootEvent) -> str:
    at = timezone.localtime(row.first_at).strftime("%Y-%m-%d %H:%M:%S")
    reports: int = row.reports  # type: ignore[attr-defined]
    size = ngettext("%(n)s report", "%(n)s reports", reports) % {"n": reports}
    return " · ".join(part for part in (at, row.workload, row.node, row.cause, size) if part)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a contract's running year stands. The verdict and its figures are None for a year without guarantee."""

    contract: Contract
    year: ContractYear
    verdict: str | None = None
    share_floor: str | None = None
    resolved: int | None = None
    counted: int | None = None
    failures_still_allowed: int | None = None


def standings(*, at: datetime.datetime) -> list[Standing]:
    """Every contract's running year: short ones first, then those that can afford the fewest misses."""
    years = list(
        ContractYear.objects.filter(starts_at__lte=at, ends_at__gt=at)
        .select_related("contract__organisation")
        .prefetch_related("contract__terms")
    )
    tallies = years_tally(years=years)
    found = [_standing(year, tallies[year.pk]) for year in years]
    return sorted(found, key=lambda row: (row.verdict is None, RISK.get(row.verdict or "", 9), _slack(row)))


def _standing(year: ContractYear, tally: Tally) -> Standing:
    rules, terms = year_rules(year)
    if terms is None or rules.terms is None or rules.guaranteed_from is None:
        return Standing(contract=year.contract, year=year)
    counted, resolved = tally.n(rules.terms), tally.k
    return Standing(
        contract=year.contract,
        year=year,
        verdict=year_verdict(tally, rules).name,
        share_floor=share_floor(resolved, counted),
        resolved=resolved,
        counted=counted,
        failures_still_allowed=failures_still_allowed(
            resolved, counted, rules.terms.threshold_num, rules.terms.threshold_den
        ),
    )


def _slack(row: Standing) -> int:
    return row.failures_still_allowed if row.failures_still_allowed is not None else 0
