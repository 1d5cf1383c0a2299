"""Percentiles of durations: by PostgreSQL's ordered-set aggregate, on SQLite the same interpolation in Python."""

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import (
    Aggregate,
    Case,
    CharField,
    Count,
    DurationField,
    ExpressionWrapper,
    F,
    Max,
    Q,
    QuerySet,
    Value,
    When,
)
from django.db.models.functions import Greatest

from yoco.guarantee.facts import milliseconds
from yoco.guarantee.models import Placement

PHASES = ("detected_at", "quiesced_at", "spare_ready_at", "state_moved_at", "state_verified_at", "resumed_at")
MILLISECOND = datetime.timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Spread:
    """How long something took over `n` incidents: median, 95th percentile and longest, milliseconds."""

    key: str
    n: int
    p50: int
    p95: int
    longest: int


class PercentileCont(Aggregate):
    """`percentile_cont(fraction) WITHIN GROUP (ORDER BY expression)`; PostgreSQL alone has it."""

    function = "PERCENTILE_CONT"
    template = "%(function)s(%(fraction)s) WITHIN GROUP (ORDER BY %(expressions)s)"
    output_field = DurationField()

    def __init__(self, expression: Any, *, fraction: float, **extra: Any) -> None:
        super().__init__(expression, fraction=fraction, **extra)


def spread_of(key: str, durations_ms: Iterable[int]) -> Spread | None:
    """The spread of these durations with linear interpolation, as `percentile_cont` does it; None for none."""
    ordered = sorted(durations_ms)
    if not ordered:
        return None
    return Spread(key, len(ordered), _interpolated(ordered, 50), _interpolated(ordered, 95), ordered[-1])


def _interpolated(ordered: Sequence[int], percent: int) -> int:
    place, rest = divmod((len(ordered) - 1) * percent, 100)
    above = ordered[min(place + 1, len(ordered) - 1)]
    return ordered[place] + (above - ordered[place]) * rest // 100


def recovery_spreads(placements: "QuerySet[Placement]", groupings: dict[str, str]) -> dict[str, list[Spread]]:
    """From start to resumption, by the values of each grouping's field; one query for all groupings."""
    rows = placements.filter(incident__resumed_at__isnull=False)
    found: dict[str, list[Spread | None]] = {name: [] for name in groupings}
    if connection.vendor == "postgresql":
        took = ExpressionWrapper(F("incident__resumed_at") - F("incident__started_at"), output_field=DurationField())
        first, *others = [
            rows.order_by()
            .annotate(grouping=Value(name, output_field=CharField()))
            .values("grouping", key=F(field))
            .annotate(**_aggregates(took))
            for name, field in groupings.items()
        ]
        united: list[Any] = list(first.union(*others, all=True))
        for row in united:
            found[row["grouping"]].append(_spread(row["key"], row))
        return {name: _in_order(spreads) for name, spreads in found.items()}
    durations: dict[tuple[str, str], list[int]] = {}
    for start, end, *keys in rows.values_list("incident__started_at", "incident__resumed_at", *groupings.values()):
        for name, key in zip(groupings, keys, strict=True):
            durations.setdefault((name, key), []).append(milliseconds(start, end) or 0)
    for (name, key), values in durations.items():
        found[name].append(spread_of(key, values))
    return {name: _in_order(spreads) for name, spreads in found.items()}


def phase_spreads(placements: "QuerySet[Placement]") -> tuple[list[Spread], int]:
    """How long each phase took: from the latest instant known before it. One query.

    An instant that is missing, or lies before those in front of it, ends no phase; how many of the latter there are is
    the second value: clocks that disagree make them.
    """
    if connection.vendor == "postgresql":
        return _phases_in_sql(placements)
    by_phase: dict[str, list[int]] = {name: [] for name in PHASES}
    skewed = 0
    names = [f"incident__{name}" for name in ("started_at", *PHASES)]
    for start, *instants in placements.values_list(*names):
        latest = start
        for name, at in zip(PHASES, instants, strict=True):
            if at is None:
                continue
            if at < latest:
                skewed += 1
                continue
            by_phase[name].append(milliseconds(latest, at) or 0)
            latest = at
    return [found for name, values in by_phase.items() if (found := spread_of(name, values))], skewed


def _phases_in_sql(placements: "QuerySet[Placement]") -> tuple[list[Spread], int]:
    aggregates: dict[str, Any] = {}
    known = ["incident__started_at"]
    for name in PHASES:
        end = f"incident__{name}"
        # PostgreSQL's GREATEST skips what is null.
        latest: Any = Greatest(*known) if len(known) > 1 else F(known[0])
        in_order, backwards = _ordered(end, latest)
        took = ExpressionWrapper(F(end) - latest, output_field=DurationField())
        for label, aggregate in _aggregates(Case(When(in_order, then=took))).items():
            aggregates[f"{name}_{label}"] = aggregate
        aggregates[f"{name}_skewed"] = Count("pk", filter=backwards)
        known.append(end)
    row = placements.aggregate(**aggregates)
    spreads = [
        _spread(name, {label: row[f"{name}_{label}"] for label in ("n", "p50", "p95", "longest")})
        for name in PHASES
        if row[f"{name}_n"]
    ]
    return spreads, sum(row[f"{name}_skewed"] for name in PHASES)


def _ordered(end: str, latest: Any) -> tuple[Q, Q]:
    return Q(**{f"{end}__gte": latest}), Q(**{f"{end}__lt": latest})


def _aggregates(took: Any) -> dict[str, Any]:
    return {
        "n": Count(took),
        "p50": PercentileCont(took, fraction=0.5),
        "p95": PercentileCont(took, fraction=0.95),
        "longest": Max(took, output_field=DurationField()),
    }


def _spread(key: str, row: dict[str, Any]) -> Spread:
    return Spread(key, row["n"], *(row[name] // MILLISECOND for name in ("p50", "p95", "longest")))


def _in_order(spreads: Iterable[Spread | None]) -> list[Spread]:
    return sorted((found for found in spreads if found), key=lambda found: (-found.n, found.key))
