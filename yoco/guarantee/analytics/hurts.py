"""Where a contract year hurts: causes, how long recovery takes, which nodes and GPUs fail again and again."""

from dataclasses import dataclass
from typing import Any

from django.db.models import CharField, Count, F, QuerySet, Sum, Value

from yoco.guarantee.analytics.exposure import Watched
from yoco.guarantee.analytics.percentiles import Spread, phase_spreads, recovery_spreads
from yoco.guarantee.analytics.scope import Scope, failures_of
from yoco.guarantee.models import Placement
from yoco.waste.changes import LEMON_FAILURES, Lemon, lemons

MOST_XIDS = 15
GROUPINGS = {"kind": "kind", "resolution": "incident__resolution", "strategy": "incident__strategy"}


@dataclass(frozen=True, slots=True)
class Cause:
    """Failures of one cause, the share of all failures up to and with it, and the GPU-time that it wasted."""

    key: str
    failures: int
    cumulated: float
    waste_ms: int


@dataclass(frozen=True, slots=True)
class YearHurts:
    """`skewed` instants lay before those in front of them and ended no phase."""

    failures: int
    causes: list[Cause]
    xids: list[Cause]
    recovery: dict[str, list[Spread]]
    phases: list[Spread]
    skewed: int
    nodes: list[Lemon]
    gpus: list[Lemon]
    fleet_nodes: int
    fleet_gpus: int


def year_hurts(scope: Scope, watched: list[Watched]) -> YearHurts:
    """Four queries; percentiles of all incidents of the year, causes and repeat offenders of its failures."""
    placed = Placement.objects.filter(year=scope.year)
    failures = failures_of(scope.years)
    rows: list[Any] = list(
        failures.values("incident__signal", "incident__xid")
        .annotate(n=Count("pk"), waste=Sum("waste_actual_ms"))
        .order_by()
    )
    signals: dict[str, list[int]] = {}
    xids: dict[str, list[int]] = {}
    for row in rows:
        _add(signals, row["incident__signal"], row)
        if row["incident__xid"] is not None:
            _add(xids, str(row["incident__xid"]), row)
    total = sum(row["n"] for row in rows)
    # The runs of a year use the same machines one after the other, so the largest is the least that the fleet has.
    nodes = max((run.nodes or 0 for run in watched), default=0)
    gpus = max((run.gpus or 0 for run in watched), default=0)
    spreads, skewed = phase_spreads(placed)
    repeated = _repeated(failures, {"node": ("incident__node", nodes), "gpu": ("incident__gpu_uuid", gpus)})
    return YearHurts(
        failures=total,
        causes=_pareto(signals, total),
        xids=_pareto(xids, sum(n for n, _ in xids.values()))[:MOST_XIDS],
        recovery=recovery_spreads(placed, GROUPINGS),
        phases=spreads,
        skewed=skewed,
        nodes=lemons(repeated["node"], nodes, total if nodes else None),
        gpus=lemons(repeated["gpu"], gpus, total if gpus else None),
        fleet_nodes=nodes,
        fleet_gpus=gpus,
    )


def _add(causes: dict[str, list[int]], key: str, row: Any) -> None:
    found = causes.setdefault(key, [0, 0])
    found[0] += row["n"]
    found[1] += int(row["waste"])


def _pareto(causes: dict[str, list[int]], total: int) -> list[Cause]:
    found, so_far = [], 0
    for key, (n, waste) in sorted(causes.items(), key=lambda item: (-item[1][0], item[0])):
        so_far += n
        found.append(Cause(key, n, so_far / total, waste))
    return found


def _repeated(failures: "QuerySet[Placement]", parts: dict[str, tuple[str, int]]) -> dict[str, dict[str, int]]:
    """By part, those that failed often enough to be lemons; one query. `parts` gives the field and the fleet's size.

    Without a known fleet only those that failed make it up, so all of them are named: then a rate for a lemon is the
    mean of them, which finds fewer.
    """
    first, *others = [
        failures.exclude(**{field: ""})
        .order_by()
        .annotate(part=Value(part, output_field=CharField()))
        .values("part", name=F(field))
        .annotate(n=Count("pk"))
        .filter(n__gte=LEMON_FAILURES if fleet else 1)
        for part, (field, fleet) in parts.items()
    ]
    found: dict[str, dict[str, int]] = {part: {} for part in parts}
    rows: list[Any] = list(first.union(*others, all=True))
    for row in rows:
        found[row["part"]][row["name"]] = row["n"]
    return found
