"""Failure rates of a contract year from its own incidents and heartbeats, and what they let expect."""

import datetime
import uuid
from dataclasses import dataclass
from math import inf
from typing import Any

from django.db.models import Count, Min
from django.db.models.functions import TruncDate

from yoco.guarantee import statistics
from yoco.guarantee.analytics.exposure import Watched, node_weeks
from yoco.guarantee.analytics.scope import Scope, Week, epoch_ms, failures_of
from yoco.guarantee.rules import DEFAULT_TERMS, Tally, failures_still_allowed
from yoco.guarantee.tally import year_rules, years_tally
from yoco.waste.changes import Change, changes
from yoco.waste.model import HOUR_MS
from yoco.waste.rates import (
    GPUS_PER_NODE,
    Rate,
    bootstrap_interval,
    mttf_hours,
    mttf_interval,
    nodes_of,
    rate_measured,
)

PROJECTED_SIZES = (1024, 4096, 16_384, 131_072)


@dataclass(frozen=True, slots=True)
class SizeRate:
    """Mean time between failures of the runs with so many GPUs, hours. Without a failure only its lower bound."""

    gpus: int
    nodes: int
    runs: int
    failures: int
    watched_ms: int
    mttf: float | None
    interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class RunLife:
    """How long a run was watched, and for how long until its first failure."""

    run: Watched
    failures: int
    until_first_ms: int | None


@dataclass(frozen=True, slots=True)
class YearRates:
    """Rates of failures of nodes and of jobs. `unwatched` failures met runs that no agent watched; no rate has them."""

    weeks: list[Week]
    counts: list[int]
    exposures_ms: list[int]
    rate: Rate
    changes: list[Change]
    sizes: list[SizeRate]
    projected: list[tuple[int, float]]
    lives: list[RunLife]
    unwatched: int
    without_gpus: list[str]


@dataclass(frozen=True, slots=True)
class RunDay:
    """Failures of a run on a local day, and when the first began."""

    run_id: uuid.UUID
    day: datetime.date
    n: int
    first: datetime.datetime


def failures_by_run(scope: Scope) -> list[RunDay]:
    """Failures counted by run and local day in the database; one query."""
    rows: list[Any] = list(
        failures_of(scope.years)
        .values("run_id", day=local_day(scope))
        .annotate(n=Count("pk"), first=Min("started_at"))
        .order_by()
    )
    return [RunDay(row["run_id"], row["day"], row["n"], row["first"]) for row in rows]


def year_rates(scope: Scope, runs: list[Watched], by_day: list[RunDay]) -> YearRates:
    """The rates of these runs from their failures."""
    known = {run.id: run for run in runs if run.nodes}
    begun = {run.id: run.spans[0][0] for run in runs}
    first: dict[uuid.UUID, datetime.datetime] = {}
    counts = [0] * len(scope.weeks)
    size_counts: dict[int, list[int]] = {}
    run_counts: dict[uuid.UUID, int] = {}
    unwatched = 0
    for row in by_day:
        week, run = scope.week_of(row.day), known.get(row.run_id)
        if epoch_ms(row.first) >= begun.get(row.run_id, 0):
            first[row.run_id] = min(row.first, first.get(row.run_id, row.first))
        if run is None or not 0 <= week < len(counts):
            unwatched += row.n
            continue
        counts[week] += row.n
        run_counts[run.id] = run_counts.get(run.id, 0) + row.n
        size_counts.setdefault(run.gpus or 0, [0] * len(counts))[week] += row.n
    exposures = node_weeks(runs, scope)
    rate = rate_measured(counts, exposures)
    measured = rate.per_thousand_node_days
    return YearRates(
        weeks=scope.weeks,
        counts=counts,
        exposures_ms=exposures,
        rate=rate,
        changes=changes(counts, exposures),
        sizes=_sizes(list(known.values()), size_counts, scope, rate.method),
        projected=[(gpus, mttf_hours(measured, nodes_of(gpus, GPUS_PER_NODE))) for gpus in PROJECTED_SIZES]
        if measured
        else [],
        lives=[_life(run, run_counts.get(run.id, 0), first.get(run.id)) for run in runs],
        unwatched=unwatched,
        without_gpus=[run.name for run in runs if not run.nodes],
    )


def local_day(scope: Scope) -> TruncDate:
    """The day on which a failure began, in the contract's time zone."""
    return TruncDate("started_at", tzinfo=scope.zone)


def failure_days(scope: Scope) -> dict[datetime.date, int]:
    """Failures by local day, watched or not; one query."""
    rows: list[Any] = list(failures_of(scope.years).values(day=local_day(scope)).annotate(n=Count("pk")).order_by())
    return {row["day"]: row["n"] for row in rows}


def _sizes(runs: list[Watched], counts: dict[int, list[int]], scope: Scope, method: str) -> list[SizeRate]:
    by_gpus: dict[int, list[Watched]] = {}
    for run in runs:
        by_gpus.setdefault(run.gpus or 0, []).append(run)
    found = []
    for gpus, mine in sorted(by_gpus.items()):
        weekly = counts.get(gpus, [0] * len(scope.weeks))
        failures, watched = sum(weekly), sum(run.watched_ms for run in mine)
        nodes = mine[0].nodes or 0
        interval: tuple[float, float] | None
        if method == "bootstrap":
            rates = bootstrap_interval(weekly, node_weeks(mine, scope))
            interval = (mttf_hours(rates[1], nodes), mttf_hours(rates[0], nodes)) if rates else None
        else:
            interval = mttf_interval(failures, watched / HOUR_MS)
        mttf = watched / HOUR_MS / failures if failures else None
        found.append(SizeRate(gpus, nodes, len(mine), failures, watched, mttf, interval))
    return found


def _life(run: Watched, failures: int, first: datetime.datetime | None) -> RunLife:
    """Time watched before the first failure; a failure before anybody watched is not the first of a watched time."""
    until = run.within(0, epoch_ms(first)) if first is not None and failures else None
    return RunLife(run, failures, until)


def finite(value: float | None) -> float | None:
    """None for what has no bound, so that no infinity leaves in JSON."""
    return None if value is None or value == inf else value


@dataclass(frozen=True, slots=True)
class Forecast:
    """How a running year may end. `basis` says on what the failures to come rest: exposure in node-hours or days.

    `allowed` is how many more failures may stay unresolved if those to come are as expected; None without a guarantee
    or any failure so far.
    """

    counted: int
    resolved: int
    basis: str
    node_hours: float
    node_hours_to_come: float
    to_come: int
    chance_short: float | None
    allowed_now: int
    allowed: int | None


def year_forecast(scope: Scope, runs: list[Watched]) -> Forecast:
    """The chance that the year ends short, on exposure in node-hours; by days where no run was watched lately.

    The exposure to come is that of the last four weeks, carried on to the end of the year.
    """
    rules, _ = year_rules(scope.year)
    terms = rules.terms or DEFAULT_TERMS
    tally: Tally = years_tally(years=[scope.year])[scope.year.pk]
    n, k = tally.n(terms), tally.k
    # Only the guaranteed part of the year counts.
    start = epoch_ms(rules.guaranteed_from) if rules.guaranteed_from else scope.start_ms
    end = epoch_ms(rules.guaranteed_until) if rules.guaranteed_until else epoch_ms(scope.year.ends_at)
    until = min(max(scope.until_ms, start), end)
    done = sum(run.within(start, until) * run.nodes for run in runs if run.nodes)
    recent = max(start, until - 28 * 24 * HOUR_MS)
    lately = sum(run.within(recent, until) * run.nodes for run in runs if run.nodes)
    ahead = (end - until) * lately // (until - recent) if until > recent else 0
    basis = "exposure" if ahead else "days"
    elapsed, left = (done, ahead) if ahead else (until - start, end - until)
    to_come = statistics.failures_to_come(n, elapsed, left)
    chance = allowed = None
    if n and rules.guaranteed_from is not None:
        allowed = failures_still_allowed(k + to_come, n + to_come, terms.threshold_num, terms.threshold_den)
        if end > until:
            chance = statistics.chance_of_ending_short(k, n, elapsed, left, terms.threshold_num, terms.threshold_den)
    return Forecast(
        counted=n,
        resolved=k,
        basis=basis,
        node_hours=done / HOUR_MS,
        node_hours_to_come=ahead / HOUR_MS,
        to_come=to_come,
        chance_short=chance,
        allowed_now=failures_still_allowed(k, n, terms.threshold_num, terms.threshold_den),
        allowed=allowed,
    )
