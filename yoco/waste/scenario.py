"""What a year of failures costs under four ways to survive them. Pure; GPU-time in milliseconds, money in Decimal.

Per failure, with the symbols of docs/waste.md, Δ the checkpoint interval, p the share that is migrated without loss,
k the replica groups and n the chance that no spare node is free:

- checkpoint_restart  G·(D + Q + R + Δ/2)
- shrinking_groups    G·(D + M) + (G/k)·(Q + R): the other groups go on, the broken one waits for its node
- hot_spares          G·(D + R + Δ/2 + n·Q)
- live_migration      p·G·(D + M + s) + (1 - p)·G·(D + M + Q + R + Δ/2)
"""

from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from fractions import Fraction
from typing import Any, Literal

from yoco.waste.model import HOUR_MS, MINUTE_MS, cost
from yoco.waste.rates import GPUS_PER_NODE, nodes_of
from yoco.waste.spares import chance_enough

Strategy = Literal["checkpoint_restart", "shrinking_groups", "hot_spares", "live_migration"]
STRATEGIES: tuple[Strategy, ...] = ("checkpoint_restart", "shrinking_groups", "hot_spares", "live_migration")
YEAR_HOURS = 8760
YEAR_MS = YEAR_HOURS * HOUR_MS
MAX_GPUS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One synchronous job that runs all year. Times in milliseconds, the share of failures migrated from 0 to 1."""

    gpus: int
    gpus_per_node: int = GPUS_PER_NODE
    price: Decimal
    failures_per_year: Decimal
    checkpoint_interval_ms: int = 60 * MINUTE_MS
    detection_ms: int = 10 * MINUTE_MS
    queue_ms: int = 5 * MINUTE_MS
    restart_ms: int = 15 * MINUTE_MS
    migration_ms: int = 3 * MINUTE_MS
    step_ms: int = 0
    resolved_share: Decimal = Decimal("0.9")
    replica_groups: int = 8
    spare_nodes: int = 0
    repair_ms: int = 24 * HOUR_MS


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a combination makes no sense: the field to mend, a stable code, and the values of its sentence."""

    field: str
    code: str
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A year under one strategy. `idle_gpu_ms` is what spare nodes cost by standing ready, never part of the loss."""

    strategy: Strategy
    per_failure_gpu_ms: int
    lost_gpu_ms: int
    money: Decimal
    idle_gpu_ms: int
    idle_money: Decimal
    effective_share: Decimal

    @property
    def money_a_month(self) -> Decimal:
        """A twelfth of a year: 730 hours."""
        return self.money / 12

    @property
    def effective_percent(self) -> Decimal:
        """The share of the year that moves training on, in per cent, floored to two decimals."""
        return (self.effective_share * 100).quantize(Decimal("0.01"), rounding=ROUND_FLOOR)


def scenario_of(
    *,
    gpus: int,
    gpus_per_node: int,
    price: Decimal,
    failures_per_year: Decimal,
    checkpoint_minutes: Decimal,
    detection_minutes: Decimal,
    queue_minutes: Decimal,
    restart_minutes: Decimal,
    migration_seconds: Decimal,
    step_seconds: Decimal,
    resolved_percent: Decimal,
    replica_groups: int,
    spare_nodes: int,
    repair_hours: Decimal,
) -> Scenario:
    """A scenario in the units in which people think."""
    return Scenario(
        gpus=gpus,
        gpus_per_node=gpus_per_node,
        price=price,
        failures_per_year=failures_per_year,
        checkpoint_interval_ms=round(checkpoint_minutes * MINUTE_MS),
        detection_ms=round(detection_minutes * MINUTE_MS),
        queue_ms=round(queue_minutes * MINUTE_MS),
        restart_ms=round(restart_minutes * MINUTE_MS),
        migration_ms=round(migration_seconds * 1000),
        step_ms=round(step_seconds * 1000),
        resolved_share=resolved_percent / 100,
        replica_groups=replica_groups,
        spare_nodes=spare_nodes,
        repair_ms=round(repair_hours * HOUR_MS),
    )


def failures_per_year(*, gpus: int, gpus_per_node: int, rate: Decimal) -> Decimal:
    """Failures a year at `rate` failures per 1,000 node-days."""
    return nodes_of(gpus, gpus_per_node) * rate * 365 / 1000


def refusals(scenario: Scenario) -> list[Refusal]:
    """Everything that makes this combination impossible; an empty list if it can be calculated."""
    found = [
        Refusal(name, "out_of_range", {"low": low, "high": high})
        for name, low, high in (
            ("gpus", 1, MAX_GPUS),
            ("gpus_per_node", 1, 1024),
            ("replica_groups", 1, max(1, scenario.gpus)),
            ("spare_nodes", 0, 100_000),
            ("resolved_share", 0, 1),
            ("price", 0, 1_000_000),
            ("failures_per_year", 0, 100_000_000),
            *((name, 0, YEAR_MS) for name in scenario.__slots__ if name.endswith("_ms")),
        )
        if not low <= getattr(scenario, name) <= high
    ]
    if found:
        return found
    if scenario.gpus % scenario.replica_groups:
        values = {"gpus": scenario.gpus, "groups": scenario.replica_groups}
        found.append(Refusal("replica_groups", "not_divisible", values))
    if scenario.checkpoint_interval_ms == 0:
        found.append(Refusal("checkpoint_interval_ms", "no_interval", {}))
    if scenario.failures_per_year:
        between_ms = Decimal(YEAR_MS) / scenario.failures_per_year
        hours = {"mttf": between_ms / HOUR_MS}
        stall = scenario.detection_ms + scenario.queue_ms + scenario.restart_ms
        if scenario.checkpoint_interval_ms >= between_ms:
            found.append(Refusal("checkpoint_interval_ms", "interval_beyond_mttf", hours))
        elif stall + scenario.checkpoint_interval_ms / Decimal(2) >= between_ms:
            found.append(Refusal("failures_per_year", "no_progress", hours))
        elif stall + scenario.migration_ms >= between_ms:
            found.append(Refusal("migration_ms", "no_progress", hours))
    return found


def outcomes(scenario: Scenario) -> list[Outcome]:
    """A year under each strategy. Raises ValueError where `refusals` names a reason."""
    if refused := refusals(scenario):
        raise ValueError(f"This combination is impossible: {', '.join(one.code for one in refused)}.")
    return [_outcome(scenario, strategy) for strategy in STRATEGIES]


def _outcome(s: Scenario, strategy: Strategy) -> Outcome:
    stall = _stall_ms(s, strategy)
    lost = round(Fraction(s.failures_per_year) * s.gpus * stall)
    idle = s.spare_nodes * s.gpus_per_node * YEAR_MS if strategy in ("hot_spares", "live_migration") else 0
    return Outcome(
        strategy=strategy,
        per_failure_gpu_ms=round(s.gpus * stall),
        lost_gpu_ms=lost,
        money=cost(lost, s.price),
        idle_gpu_ms=idle,
        idle_money=cost(idle, s.price),
        effective_share=1 - Decimal(lost) / (s.gpus * YEAR_MS),
    )


def _stall_ms(s: Scenario, strategy: Strategy) -> Fraction:
    """What a failure costs each GPU of the job, on average."""
    recompute = Fraction(s.checkpoint_interval_ms, 2)
    restarted = s.detection_ms + s.queue_ms + s.restart_ms + recompute
    if strategy == "checkpoint_restart":
        return restarted
    if strategy == "shrinking_groups":
        return s.detection_ms + s.migration_ms + Fraction(s.queue_ms + s.restart_ms, s.replica_groups)
    if strategy == "hot_spares":
        return s.detection_ms + s.restart_ms + recompute + _chance_waiting(s) * s.queue_ms
    share = Fraction(s.resolved_share)
    migrated = s.detection_ms + s.migration_ms + s.step_ms
    return share * migrated + (1 - share) * (restarted + s.migration_ms)


def _chance_waiting(s: Scenario) -> Fraction:
    """The chance that a failure finds every spare node in use (a Poisson number of nodes under repair)."""
    if s.spare_nodes == 0:
        return Fraction(1)
    nodes = nodes_of(s.gpus, s.gpus_per_node)
    rate = float(s.failures_per_year) * 1000 / 365 / nodes
    # The failed node itself is one of those under repair, so the others may hold all but one spare.
    enough = chance_enough(spares=s.spare_nodes - 1, nodes=nodes, rate=rate, repair_hours=s.repair_ms / HOUR_MS)
    return Fraction(1 - enough)


ANNOUNCEMENT = Scenario(
    gpus=2048,
    price=Decimal("2.50"),
    failures_per_year=Decimal("390.6"),
    # Three hours a failure: 10 + 5 + 15 minutes and half of five hours.
    checkpoint_interval_ms=300 * MINUTE_MS,
)
MONTHLY_BILL = Scenario(
    gpus=1024,
    price=Decimal(3),
    failures_per_year=YEAR_HOURS / Decimal("7.9"),
    checkpoint_interval_ms=90 * MINUTE_MS,
    detection_ms=0,
    queue_ms=0,
    restart_ms=20 * MINUTE_MS,
)
