"""Wasted GPU-time of a contract year: by term, by workload, by year of the contract, and what migration was worth."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from babel.numbers import get_currency_precision
from django.db.models import BigIntegerField, Count, Sum
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Cast, Coalesce

from yoco.contracts.models import Contract
from yoco.core.money import Money
from yoco.guarantee.analytics.exposure import Watched
from yoco.guarantee.analytics.scope import Scope
from yoco.guarantee.models import Placement
from yoco.incidents.models import Run
from yoco.waste.model import HOUR_MS
from yoco.waste.rates import GPUS_PER_NODE

TERMS = ("detection", "queue", "restart", "recompute", "migration", "step_redo", "fail_slow", "preempted")
SIDES = ("actual", "counterfactual")
WORST = 20


@dataclass(slots=True)
class Sums:
    """GPU-milliseconds of some incidents. The terms of a side and what is `unsplit` add up to its total.

    `unsplit` is waste of incidents that were placed before their terms were kept.
    """

    incidents: int = 0
    actual: int = 0
    counterfactual: int = 0
    potential: int = 0
    terms: dict[str, dict[str, int]] = field(default_factory=lambda: {side: dict.fromkeys(TERMS, 0) for side in SIDES})

    @property
    def saved(self) -> int:
        """Without migration minus with it; what a preventive move may have avoided is no part of it."""
        return self.counterfactual - self.actual

    def unsplit(self, side: str) -> int:
        """Part of the total that is not known by term."""
        return int(getattr(self, side)) - sum(self.terms[side].values())

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(
            self.incidents + other.incidents,
            self.actual + other.actual,
            self.counterfactual + other.counterfactual,
            self.potential + other.potential,
            {side: {term: self.terms[side][term] + other.terms[side][term] for term in TERMS} for side in SIDES},
        )


@dataclass(frozen=True, slots=True)
class RunWaste:
    """A workload's waste, what was measured apart from what a default stood in for."""

    id: uuid.UUID
    contract_id: uuid.UUID
    name: str
    measured: Sums
    estimated: Sums

    @property
    def total(self) -> Sums:
        return self.measured + self.estimated


@dataclass(frozen=True, slots=True)
class YearWaste:
    """`runs` have the largest waste first."""

    runs: list[RunWaste]
    measured: Sums
    estimated: Sums

    @property
    def total(self) -> Sums:
        return self.measured + self.estimated


def year_waste(scope: Scope, watched: Iterable[Watched] = ()) -> YearWaste:
    """Sums of every incident of these years by run; one query, and one for the runs that are not among `watched`."""
    sums = {f"{side}_{term}": term_sum(side, term) for side in SIDES for term in TERMS}
    placements = Placement.objects.filter(year__in=scope.years)
    rows: list[Any] = list(placements.values("run_id", "waste_estimated").annotate(**TOTALS, **sums).order_by())
    pairs: dict[uuid.UUID, tuple[Sums, Sums]] = {}
    for row in rows:
        measured, estimated = pairs.setdefault(row["run_id"], (Sums(), Sums()))
        terms = {side: {term: int(row[f"{side}_{term}"]) for term in TERMS} for side in SIDES}
        sums_of = _sums(row, terms)
        pairs[row["run_id"]] = (measured, sums_of) if row["waste_estimated"] else (sums_of, estimated)
    known = {run.id: (run.contract_id, run.name) for run in watched}
    if unknown := pairs.keys() - known.keys():
        for run in Run.objects.filter(pk__in=unknown).only("contract_id", "name", "run_id"):
            known[run.pk] = (run.contract_id, str(run))
    return waste_of(RunWaste(pk, *known[pk], *pair) for pk, pair in pairs.items())


def waste_of(runs: Iterable[RunWaste]) -> YearWaste:
    """The sums of these runs."""
    ordered = sorted(runs, key=lambda run: (-run.total.actual, run.name, run.id))
    measured = sum((run.measured for run in ordered), Sums())
    return YearWaste(ordered, measured, sum((run.estimated for run in ordered), Sums()))


def term_sum(side: str, term: str) -> Coalesce:
    """One term of one side added up in the database; zero where no incident has it."""
    value = KeyTextTransform(term, KeyTransform(side, "waste_terms"))
    return Coalesce(Sum(Cast(value, BigIntegerField())), 0)


TOTALS = {
    "n": Count("lead"),
    "actual": Sum("waste_actual_ms"),
    "counterfactual": Sum("waste_counterfactual_ms"),
    "potential": Sum("waste_potential_ms"),
}


def _sums(row: Any, terms: dict[str, dict[str, int]] | None = None) -> Sums:
    totals = (row["n"], int(row["actual"]), int(row["counterfactual"]), int(row["potential"]))
    return Sums(*totals, terms) if terms else Sums(*totals)


def fleet_years(scope: Scope) -> list[tuple[int, Sums, Sums]]:
    """The totals of every year of the contract: (number, measured, estimated). One query over the tally's index."""
    rows: list[Any] = list(
        Placement.objects.filter(year__contract=scope.year.contract_id)
        .values("year__number", "waste_estimated")
        .annotate(**TOTALS)
        .order_by("year__number")
    )
    years: dict[int, list[Sums]] = {}
    for row in rows:
        years.setdefault(row["year__number"], [Sums(), Sums()])[row["waste_estimated"]] = _sums(row)
    return [(number, measured, estimated) for number, (measured, estimated) in years.items()]


def worst_incidents(scope: Scope) -> list[Placement]:
    """The incidents that wasted most, with their incident and run."""
    rows = Placement.objects.filter(year=scope.year, waste_actual_ms__gt=0).select_related("incident", "run")
    return list(rows.defer("evidence", "waste_terms").order_by("-waste_actual_ms", "pk")[:WORST])


def cost(gpu_ms: int, contract: Contract) -> Fraction | None:
    """GPU-time at the contract's price, exact, in minor units of its currency; None where no price was agreed."""
    price = contract.price_per_gpu_hour
    if price is None:
        return None
    scale: int = 10 ** get_currency_precision(contract.currency)
    return Fraction(gpu_ms) * Fraction(price) * scale / HOUR_MS


def priced(gpu_ms: int, contract: Contract) -> Money | None:
    """`cost`, rounded once, half to even."""
    exact = cost(gpu_ms, contract)
    return None if exact is None else Money(round(exact), contract.currency)


@dataclass(frozen=True, slots=True)
class Benefit:
    """What migration was worth, GPU-milliseconds, and in money where there is a price.

    avoided - migration pauses - pre-empted jobs' loss - idle spares = net; with money, the fee is taken off as well.
    The stall that migration avoided counts before its own pauses, so that no pause is taken off twice. `spares_told` is
    how many spare nodes of the pool incidents name: at least so many stood ready.
    """

    avoided: int
    pauses: int
    preempted: int
    idle: int | None
    fee: Money | None
    contract: Contract
    spares_told: int

    @property
    def net(self) -> int:
        return self.avoided - self.pauses - self.preempted - (self.idle or 0)

    @property
    def net_money(self) -> Money | None:
        """Net GPU-time at the contract's price minus the fee of the year; None without a price."""
        money = priced(self.net, self.contract)
        return money - self.fee if money is not None and self.fee is not None else money


def spare_nodes_told(scope: Scope) -> int:
    """How many spare nodes of the pool incidents of the year name. One query."""
    placed = Placement.objects.filter(year__in=scope.years, incident__spare_origin="pool")
    return int(placed.exclude(incident__spare_node="").aggregate(n=Count("incident__spare_node", distinct=True))["n"])


def benefit_of(scope: Scope, total: Sums, *, spare_nodes: int | None, spares_told: int = 0) -> Benefit:
    """The net benefit of a year so far. `spare_nodes` stand idle all along; None leaves them out, and the page says so.

    Pre-empted jobs' loss is taken off whole: without migration nobody would have been pre-empted for its spare.
    """
    contract, year = scope.year.contract, scope.year
    actual, without = total.terms["actual"], total.terms["counterfactual"]
    stalled = total.actual - actual["migration"] - actual["preempted"]
    elapsed = scope.until_ms - scope.start_ms
    return Benefit(
        avoided=total.counterfactual - without["preempted"] - stalled,
        pauses=actual["migration"],
        preempted=actual["preempted"],
        idle=None if spare_nodes is None else spare_nodes * GPUS_PER_NODE * elapsed,
        fee=Money(year.fees_minor, contract.currency) if year.fees_minor is not None else None,
        contract=contract,
        spares_told=spares_told,
    )
