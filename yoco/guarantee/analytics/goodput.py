"""How much of the watched GPU-time moved training on: measured, and by the published formulas."""

import uuid
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from django.db.models import Avg, Count, DurationField, ExpressionWrapper, F, Sum

from yoco.guarantee.analytics.exposure import Watched
from yoco.guarantee.analytics.paces import RunPace
from yoco.guarantee.analytics.rates import YearRates
from yoco.guarantee.analytics.scope import Scope
from yoco.guarantee.analytics.waste import RunWaste, Sums, term_sum
from yoco.guarantee.models import Placement
from yoco.waste.badput import Breakdown, breakdown, breakdowns_sum
from yoco.waste.ettr import checkpoint_interval_optimal, ettr_linear, ettr_renewal, survival
from yoco.waste.model import HOUR_MS, Defaults
from yoco.waste.rates import availability

DEFAULTS = Defaults()
WRITE_MS = 60_000  # time to write a checkpoint, which nobody reports
# Terms in which the job stands still; in the others it runs without moving on.
STANDING = ("detection", "queue", "restart", "migration")
DAY_HOURS = 24.0


@dataclass(frozen=True, slots=True)
class Assumption:
    """An input of the formulas in milliseconds, measured on so many incidents; on none it is the default."""

    name: str
    value_ms: int
    incidents: int

    @property
    def measured(self) -> bool:
        return self.incidents > 0


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Checkpoint interval, restart, waiting for a node, and the time to write a checkpoint."""

    interval: Assumption
    restart: Assumption
    wait: Assumption
    write: Assumption

    @property
    def rows(self) -> tuple[Assumption, ...]:
        return (self.interval, self.restart, self.wait, self.write)


ASSUMED = Assumptions(
    Assumption("interval", DEFAULTS.checkpoint_interval_ms, 0),
    Assumption("restart", DEFAULTS.restart_ms, 0),
    Assumption("wait", DEFAULTS.queue_ms, 0),
    Assumption("write", WRITE_MS, 0),
)


def assumptions_of(scope: Scope, *, write_ms: int | None) -> dict[uuid.UUID, Assumptions]:
    """By contract, what its incidents say of checkpoints and restarts; two queries.

    A failure falls anywhere between two checkpoints, so the interval is twice the mean age of the last one.
    """
    placed = Placement.objects.filter(year__in=scope.years)
    age = ExpressionWrapper(F("started_at") - F("incident__last_checkpoint_at"), output_field=DurationField())
    known: list[Any] = list(
        placed.filter(incident__last_checkpoint_at__lte=F("started_at"))
        .values("year__contract")
        .annotate(mean=Avg(age), n=Count("pk"))
        .order_by()
    )
    restarts: list[Any] = list(
        placed.filter(waste_estimated=False, waste_terms__actual__restart__gt=0)
        .values("year__contract")
        .annotate(
            n=Count("pk"),
            restart=term_sum("actual", "restart"),
            queue=term_sum("actual", "queue"),
            gpus=Sum("incident__gpus"),
        )
        .order_by()
    )
    ages = {row["year__contract"]: row for row in known}
    measured = {row["year__contract"]: row for row in restarts}
    return {
        year.contract_id: _assumptions(ages.get(year.contract_id), measured.get(year.contract_id), write_ms)
        for year in scope.years
    }


def _assumptions(age: Any, restart: Any, write_ms: int | None) -> Assumptions:
    interval = 2 * round(age["mean"].total_seconds() * 1000) if age else 0
    gpus = (restart["gpus"] or 0) if restart else 0
    n = restart["n"] if gpus else 0
    return Assumptions(
        Assumption("interval", interval or DEFAULTS.checkpoint_interval_ms, age["n"] if interval else 0),
        Assumption("restart", int(restart["restart"]) // gpus if gpus else DEFAULTS.restart_ms, n),
        Assumption("wait", int(restart["queue"]) // gpus if gpus else DEFAULTS.queue_ms, n),
        Assumption("write", WRITE_MS if write_ms is None else write_ms, 0),
    )


@dataclass(frozen=True, slots=True)
class RunGoodput:
    """A run's GPU-time by class, and what the formulas say of it with checkpoint restarts. None: not enough data.

    `best_interval_hours` is the optimal checkpoint interval; None without a failure, where longer is always better.
    """

    name: str
    gpus: int
    breakdown: Breakdown
    failures: int
    available: float | None
    renewal: float | None
    linear: float | None
    best_interval_hours: float | None
    day_without_failure: float | None


@dataclass(frozen=True, slots=True)
class YearGoodput:
    """`fleet` is the sum of the runs that were watched; `unwatched` runs have waste, but no time to compare it with.

    `paced` runs have told their step times for long enough to say whether they went slowly.
    """

    runs: list[RunGoodput]
    fleet: Breakdown
    assumptions: Assumptions
    unwatched: list[str]
    estimated: bool
    paced: int

    def fleet_share(self, name: Literal["available", "renewal", "linear"]) -> float | None:
        """A share of the whole fleet: the runs' shares, weighted by their watched GPU-time; None without any."""
        told = [(getattr(run, name), run.breakdown.total) for run in self.runs if getattr(run, name) is not None]
        total = sum(weight for _, weight in told)
        return sum(share * weight for share, weight in told) / total if total else None


def year_goodput(
    watched: list[Watched],
    waste: list[RunWaste],
    rates: YearRates,
    paces: list[RunPace],
    assumptions: Assumptions,
) -> YearGoodput:
    """The breakdown of each watched run; terms of incidents placed before terms were kept count as recovery.

    Slowness is told by step times in hours that no incident touches, so none of it is in an incident's terms as well.
    """
    by_run = {run.id: run.total for run in waste}
    failures = {life.run.id: life.failures for life in rates.lives}
    slow = {pace.run.id: lost for pace in paces if (lost := pace.lost_gpu_ms) is not None}
    known = [run for run in watched if run.gpus]
    runs = [
        _run(run, by_run.get(run.id, Sums()), failures.get(run.id, 0), slow.get(run.id, 0), assumptions)
        for run in known
    ]
    ids = {run.id for run in known}
    return YearGoodput(
        runs=runs,
        fleet=breakdowns_sum(one.breakdown for one in runs),
        assumptions=assumptions,
        unwatched=[run.name for run in waste if run.id not in ids],
        estimated=any(run.estimated.incidents for run in waste if run.id in ids),
        paced=len(slow.keys() & ids),
    )


def _run(run: Watched, sums: Sums, failures: int, slow: int, given: Assumptions) -> RunGoodput:
    terms = {**sums.terms["actual"]}
    terms["fail_slow"] += slow
    terms["detection"] += sums.unsplit("actual")
    split = breakdown(total=run.gpu_ms, terms=terms)
    standing = sum(terms[name] for name in STANDING)
    rate = failures / (run.watched_ms / HOUR_MS) if run.watched_ms else 0.0
    interval, restart, wait, write = (row.value_ms / HOUR_MS for row in given.rows)
    renewal = linear = best = day = None
    if run.watched_ms and interval:
        renewal = ettr_renewal(interval=interval, failure_rate=rate, restart=restart, write=write, wait=wait)
        linear = ettr_linear(interval=interval, failure_rate=rate, restart=restart, write=write)
        optimum = checkpoint_interval_optimal(failure_rate=rate, write=write)
        best = optimum if isfinite(optimum) else None
        day = survival(failure_rate=rate, duration=DAY_HOURS)
    return RunGoodput(
        name=run.name,
        gpus=run.gpus or 0,
        breakdown=split,
        failures=failures,
        available=availability(max(0, run.gpu_ms - standing), min(standing, run.gpu_ms)),
        renewal=renewal,
        linear=linear,
        best_interval_hours=best,
        day_without_failure=day,
    )
