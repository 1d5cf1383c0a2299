"""What the desk's lists read."""

import datetime
import uuid
from dataclasses import dataclass

from django.db.models import Count, Min, OuterRef, QuerySet, Subquery
from django.utils import timezone
from django.utils.translation import ngettext

from yoco.contracts.models import Contract, ContractYear
from yoco.guarantee.models import Statement
from yoco.guarantee.rules import Tally, failures_still_allowed, share_floor
from yoco.guarantee.tally import year_rules, year_verdict, years_tally
from yoco.incidents.models import Incident, RootEvent


def years_stated(*, contract: Contract) -> QuerySet[ContractYear]:
    """A contract's years, the latest first, each with the `revision` and `verdict` of its latest statement, if any."""
    latest = Statement.objects.filter(year=OuterRef("pk")).order_by("-revision")
    return (
        ContractYear.objects.filter(contract=contract)
        .annotate(revision=Subquery(latest.values("revision")[:1]), verdict=Subquery(latest.values("verdict")[:1]))
        .order_by("-number")
    )


STANDINGS_SHOWN = 50
EVENTS_SHOWN = 30
# Verdicts by how soon somebody should look.
RISK = {"short": 0, "undecided": 1, "met": 2, "no_failures": 3}


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
    """Where a contract stands: its running year, if any. The verdict and its figures are None without a guarantee."""

    contract: Contract
    year: ContractYear | None = None
    verdict: str | None = None
    share_floor: str | None = None
    resolved: int | None = None
    counted: int | None = None
    failures_still_allowed: int | None = None

    @property
    def risk(self) -> tuple[bool, bool, int, int, str]:
        """Sorts those first that fall short or may, then those that can afford the fewest misses."""
        verdict = RISK.get(self.verdict or "", 9)
        return (
            self.year is None,
            self.verdict is None,
            verdict,
            self.failures_still_allowed or 0,
            self.contract.number,
        )


@dataclass(frozen=True, slots=True)
class StandingsPage:
    """A stretch of the portfolio. `after` continues it, the number of the last contract; empty at its end."""

    rows: list[Standing]
    after: str


def standings(*, at: datetime.datetime, after: str = "") -> StandingsPage:
    """Every contract by its running year, those at risk first; then those that have not begun or are over.

    Risk comes from all of them, so all are read, in four queries; a page of them is shown.
    """
    years = list(
        ContractYear.objects.filter(starts_at__lte=at, ends_at__gt=at)
        .select_related("contract__organisation")
        .prefetch_related("contract__terms")
    )
    tallies = years_tally(years=years)
    others = Contract.objects.exclude(pk__in=[year.contract_id for year in years]).select_related("organisation")
    found = [_standing(year, tallies[year.pk]) for year in years] + [Standing(contract) for contract in others]
    found.sort(key=lambda row: row.risk)
    start = next((place + 1 for place, row in enumerate(found) if row.contract.number == after), 0)
    rows = found[start : start + STANDINGS_SHOWN]
    return StandingsPage(rows, rows[-1].contract.number if start + STANDINGS_SHOWN < len(found) else "")


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
