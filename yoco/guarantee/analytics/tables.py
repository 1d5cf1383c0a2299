"""The figures of the analytics as tables: what a chart draws, what an export holds and what the API answers.

A column's name says its unit: `_gpu_ms` GPU-milliseconds, `_ms` milliseconds, `_hours` hours, `share` and `chance`
from 0 to 1, `_on` a local day, `_at` an instant. A value that the data do not allow is None, never zero or NaN.
"""

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from yoco.contracts.models import Contract
from yoco.core.money import Money
from yoco.guarantee.analytics.goodput import YearGoodput
from yoco.guarantee.analytics.hurts import YearHurts
from yoco.guarantee.analytics.paces import RunPace, at_of
from yoco.guarantee.analytics.percentiles import Spread
from yoco.guarantee.analytics.rates import Forecast, YearRates, finite
from yoco.guarantee.analytics.scope import Scope
from yoco.guarantee.analytics.waste import TERMS, Benefit, Sums, YearWaste, priced
from yoco.guarantee.models import Placement
from yoco.waste.anchors import MTTF, RATES
from yoco.waste.model import HOUR_MS
from yoco.waste.rates import node_rate

DAY = datetime.timedelta(days=1)
# No incident's report tells of these. A zero would be a claim.
NOT_REPORTED = ("fail_slow", "checkpoint_save")
PACES_DRAWN = 6


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under named columns."""

    code: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def records(self) -> list[dict[str, Any]]:
        """Each row by column name."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def rates_tables(rates: YearRates) -> list[Table]:
    """Weeks, failure rates of nodes, mean times between failures, and runs."""
    changed = {change.since: change.direction for change in rates.changes}
    weeks = [
        (week.starts_on, count, exposure / HOUR_MS, node_rate(count, exposure), changed.get(index, ""))
        for index, (week, count, exposure) in enumerate(zip(rates.weeks, rates.counts, rates.exposures_ms, strict=True))
    ]
    low, high = rates.rate.interval or (None, None)
    own = rates.rate.per_thousand_node_days
    node_rates: list[tuple[Any, ...]] = [("measured_here", "", rates.rate.failures, own, low, finite(high))]
    node_rates += [
        ("published", anchor.source, None, anchor.rate, None, None) for anchor in RATES if anchor.code != "default"
    ]
    mttf: list[tuple[Any, ...]] = []
    for size in rates.sizes:
        bounds = size.interval or (None, None)
        mttf.append(("measured_here", "", size.gpus, size.failures, size.mttf, finite(bounds[0]), finite(bounds[1])))
    mttf += [("projected_here", "", gpus, None, finite(hours), None, None) for gpus, hours in rates.projected]
    mttf += [
        (anchor.basis, anchor.source, anchor.gpus, None, anchor.hours, *(anchor.interval or (None, None)))
        for anchor in MTTF
    ]
    lives = [
        (life.run.name, life.run.gpus, life.run.watched_ms, life.failures, life.until_first_ms) for life in rates.lives
    ]
    return [
        Table("weekly", ("week_on", "failures", "node_hours", "node_rate", "change"), weeks),
        Table("node_rates", ("basis", "source", "failures", "node_rate", "low", "high"), node_rates),
        Table("mttf", ("basis", "source", "gpus", "failures", "mttf_hours", "low_hours", "high_hours"), mttf),
        Table("first_failure", ("run", "gpus", "watched_ms", "failures", "until_first_ms"), lives),
    ]


def forecast_table(forecast: Forecast) -> Table:
    """One row."""
    columns = ("counted", "resolved", "basis", "node_hours", "to_come_node_hours", "to_come", "chance", "allowed_now")
    return Table(
        "forecast",
        (*columns, "allowed"),
        [
            (
                forecast.counted,
                forecast.resolved,
                forecast.basis,
                forecast.node_hours,
                forecast.node_hours_to_come,
                forecast.to_come,
                forecast.chance_short,
                forecast.allowed_now,
                forecast.allowed,
            )
        ],
    )


def _amount(money: Money | None) -> str | None:
    return None if money is None else str(money.decimal)


def waste_cells(measured: Sums, estimated: Sums) -> tuple[Any, ...]:
    """The values of WASTE_COLUMNS."""
    total = measured + estimated
    return (
        total.incidents,
        total.actual,
        estimated.actual,
        total.counterfactual,
        total.saved,
        estimated.saved,
        total.potential,
    )


def _row(name: Any, measured: Sums, estimated: Sums, contract: Contract) -> tuple[Any, ...]:
    total = measured + estimated
    money = (_amount(priced(total.actual, contract)), _amount(priced(total.saved, contract)))
    return (name, *waste_cells(measured, estimated), *money)


WASTE_COLUMNS = (
    "incidents",
    "wasted_gpu_ms",
    "wasted_estimated_gpu_ms",
    "without_gpu_ms",
    "saved_gpu_ms",
    "saved_estimated_gpu_ms",
    "potential_gpu_ms",
)
MONEY_COLUMNS = ("wasted_money", "saved_money")


def terms_table(waste: YearWaste) -> Table:
    """Waste by term on both sides, measured and estimated apart."""
    terms: list[tuple[Any, ...]] = []
    for term in (*TERMS, "unsplit"):
        row = [
            sums.unsplit(side) if term == "unsplit" else sums.terms[side][term]
            for side in ("actual", "counterfactual")
            for sums in (waste.measured, waste.estimated)
        ]
        if term in NOT_REPORTED and not any(row):
            terms.append((term, None, None, None, None))
        elif term != "unsplit" or any(row):
            terms.append((term, *row))
    columns = (
        "wasted_measured_gpu_ms",
        "wasted_estimated_gpu_ms",
        "without_measured_gpu_ms",
        "without_estimated_gpu_ms",
    )
    return Table("terms", ("term", *columns), terms)


def waste_tables(
    waste: YearWaste,
    *,
    contract: Contract,
    benefit: Benefit,
    years: Iterable[tuple[int, Sums, Sums]] = (),
    worst: Iterable[Placement] = (),
) -> list[Table]:
    """Terms, net benefit, workloads, the contract's years, and the incidents that cost most."""
    lines = [
        ("avoided", benefit.avoided),
        ("pauses", -benefit.pauses),
        ("preempted", -benefit.preempted),
        *([("idle", -benefit.idle)] if benefit.idle is not None else []),
    ]
    net: list[tuple[Any, ...]] = [(name, gpu_ms, _amount(priced(gpu_ms, contract))) for name, gpu_ms in lines]
    if benefit.fee is not None:
        net.append(("fee", None, _amount(-benefit.fee)))
    net.append(("net", benefit.net, _amount(benefit.net_money)))
    return [
        terms_table(waste),
        Table("benefit", ("line", "gpu_ms", "money"), net),
        Table(
            "workloads",
            ("run", *WASTE_COLUMNS, *MONEY_COLUMNS),
            [_row(run.name, run.measured, run.estimated, contract) for run in waste.runs],
        ),
        Table("fleet", ("year", *WASTE_COLUMNS, *MONEY_COLUMNS), [_row(*year, contract) for year in years]),
        Table(
            "worst",
            ("incident", "run", "started_at", "kind", "estimated", "wasted_gpu_ms", "saved_gpu_ms", "wasted_money"),
            [
                (
                    str(row.incident.public_id),
                    str(row.run),
                    row.started_at,
                    row.kind,
                    row.waste_estimated,
                    row.waste_actual_ms,
                    row.waste_counterfactual_ms - row.waste_actual_ms,
                    _amount(priced(row.waste_actual_ms, contract)),
                )
                for row in worst
            ],
        ),
    ]


def goodput_tables(goodput: YearGoodput) -> list[Table]:
    """The fleet's GPU-time by class, each run, and what the formulas were given."""
    fleet = goodput.fleet
    classes: list[tuple[str, int | None]] = [("productive", fleet.productive)]
    unknown = {"checkpoint_save"} if goodput.paced else set(NOT_REPORTED)
    classes += [(name, None if name in unknown and not value else value) for name, value in fleet.badput.items()]
    if fleet.excess:
        classes.append(("excess", -fleet.excess))
    return [
        Table(
            "classes",
            ("class", "gpu_ms", "share"),
            [
                (name, value, value / fleet.total if fleet.total and value is not None else None)
                for name, value in classes
            ],
        ),
        Table(
            "runs",
            (
                "run",
                "gpus",
                "watched_gpu_ms",
                "goodput_share",
                "available_share",
                "failures",
                "renewal_share",
                "linear_share",
                "best_interval_hours",
                "day_chance",
            ),
            [
                (
                    run.name,
                    run.gpus,
                    run.breakdown.total,
                    run.breakdown.goodput,
                    run.available,
                    run.failures,
                    run.renewal,
                    run.linear,
                    run.best_interval_hours,
                    run.day_without_failure,
                )
                for run in goodput.runs
            ],
        ),
        Table(
            "assumptions",
            ("input", "value_ms", "incidents"),
            [(row.name, row.value_ms, row.incidents) for row in goodput.assumptions.rows],
        ),
    ]


def recovery_tables(hurts: YearHurts, *, scope: Scope, days: dict[datetime.date, int]) -> list[Table]:
    """Causes, recovery times, phases, repeat offenders, and failures by day."""
    spread = ("incidents", "p50_ms", "p95_ms", "longest_ms")
    recovery = [(grouping, *_spread(found)) for grouping, spreads in hurts.recovery.items() for found in spreads]
    causes = ("failures", "cumulated_share", "wasted_gpu_ms")
    lemons = [("node", one.node, one.failures, one.chance) for one in hurts.nodes]
    lemons += [("gpu", one.node, one.failures, one.chance) for one in hurts.gpus]
    last = (scope.until - datetime.timedelta(microseconds=1)).astimezone(scope.zone).date()
    begun = max(0, (last - scope.year.starts_on).days + 1)
    calendar = [(day := scope.year.starts_on + DAY * n, days.get(day, 0)) for n in range(begun)]
    return [
        Table("causes", ("cause", *causes), [_cause(one) for one in hurts.causes]),
        Table("xids", ("xid", *causes), [_cause(one) for one in hurts.xids]),
        Table("recovery", ("grouping", "group", *spread), recovery),
        Table("phases", ("phase", *spread), [_spread(found) for found in hurts.phases]),
        Table("lemons", ("part", "name", "failures", "chance"), lemons),
        Table("calendar", ("day_on", "failures"), calendar),
    ]


def pace_tables(paces: list[RunPace], *, scope: Scope) -> list[Table]:
    """Slow stretches, or that a run had none, and step times day by day of the runs that lost most."""
    slow: list[tuple[Any, ...]] = []
    for each in paces:
        baseline = None if each.pace.baseline_ms is None else round(each.pace.baseline_ms)
        base = (each.run.name, len(each.pace.hours), baseline)
        slow += [
            (
                *base,
                at_of(one.since_ms),
                at_of(one.last_ms + HOUR_MS),
                one.hours,
                round(one.step_ms),
                one.factor,
                one.lost_ms * (each.run.gpus or 0),
            )
            for one in each.pace.slow
        ]
        if not each.pace.slow:
            slow.append((*base, None, None, 0 if baseline is not None else None, None, None, each.lost_gpu_ms))
    known = [each for each in paces if each.pace.baseline_ms is not None]
    drawn = sorted(known, key=lambda each: -(each.lost_gpu_ms or 0))
    days: list[tuple[Any, ...]] = []
    for each in drawn[:PACES_DRAWN]:
        by_day: dict[datetime.date, tuple[int, int]] = {}
        for hour in each.pace.hours:
            day = at_of(hour.at_ms).astimezone(scope.zone).date()
            steps, took = by_day.get(day, (0, 0))
            by_day[day] = (steps + hour.steps, took + hour.took_ms)
        days += [(each.run.name, day, round(took / steps), steps) for day, (steps, took) in sorted(by_day.items())]
    return [
        Table(
            "slow",
            (
                "run",
                "hours",
                "baseline_step_ms",
                "since_at",
                "until_at",
                "slow_count",
                "slow_step_ms",
                "factor",
                "lost_gpu_ms",
            ),
            slow,
        ),
        Table("paces", ("run", "day_on", "step_ms", "steps"), days),
    ]


def _cause(one: Any) -> tuple[Any, ...]:
    return (one.key, one.failures, one.cumulated, one.waste_ms)


def _spread(found: Spread) -> tuple[Any, ...]:
    return (found.key, found.n, found.p50, found.p95, found.longest)
