"""GPU-time that one incident wasted, and what it would have wasted without a migration. Pure: no Django, no clock.

GPU-time is an integer number of GPU-milliseconds. Formulas and symbols are those of docs/waste.md:

- restart             G·(D + Q + R + C) + G·f·τ + G_p·L_p
- migration           G·(D + M + s) + G·f·τ + G_p·L_p
- migration failed    G·(D + M + Q + R + C) + G·f·τ + G_p·L_p
- planned, preventive G·(M + s) + G_p·L_p

A value that was not measured is replaced by its published default, and the figure then says so and names it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

How = Literal["restarted", "migrated", "migration_failed", "planned_move", "preventive_move", "open"]

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What stands in for a value that was not measured, milliseconds."""

    detection_ms: int = 10 * MINUTE_MS
    queue_ms: int = 5 * MINUTE_MS
    restart_ms: int = 15 * MINUTE_MS
    checkpoint_interval_ms: int = 60 * MINUTE_MS
    migration_ms: int = 3 * MINUTE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class WasteInput:
    """What is known of one incident. None means not measured; every time is in milliseconds.

    `overlap_ms` is the part of this stall in which the job stood still already because of an earlier incident.
    `redo_limit_ms` is the age of the last durable checkpoint: more than that cannot have been redone.
    """

    how: How
    gpus: int
    detection_ms: int | None = None
    queue_ms: int | None = None
    restart_ms: int | None = None
    recompute_ms: int | None = None
    migration_ms: int | None = None
    step_ms: int | None = None
    redo_limit_ms: int | None = None
    slow_fraction: Fraction = Fraction(0)
    slow_ms: int = 0
    preempted_gpus: int = 0
    preempted_ms: int = 0
    overlap_ms: int = 0

    def __post_init__(self) -> None:
        numbers = [value for name in self.__slots__ if isinstance(value := getattr(self, name), int | Fraction)]
        if any(value < 0 for value in numbers) or self.slow_fraction > 1:
            raise ValueError("Durations, GPU counts and fractions of a waste input are not negative.")


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentWaste:
    """GPU-milliseconds by term. `actual` is the sum of `terms`; `saved`, counterfactual minus actual, may be negative.

    `potential` is what a preventive move may have avoided. It is never part of `saved`.
    `estimated` names the terms for which a default stood in; empty when everything was measured.
    """

    terms: dict[str, int]
    counterfactual_terms: dict[str, int]
    potential: int
    estimated: tuple[str, ...]

    @property
    def actual(self) -> int:
        return sum(self.terms.values())

    @property
    def counterfactual(self) -> int:
        return sum(self.counterfactual_terms.values())

    @property
    def saved(self) -> int:
        return self.counterfactual - self.actual


# The terms of each kind of incident, in the order in which an overlap is taken off them: first what lies earliest.
ACTUAL: dict[How, tuple[str, ...]] = {
    "restarted": ("recompute", "detection", "queue", "restart"),
    "migrated": ("detection", "migration", "step_redo"),
    "migration_failed": ("recompute", "detection", "migration", "queue", "restart"),
    "planned_move": ("migration", "step_redo"),
    "preventive_move": ("migration", "step_redo"),
    "open": (),
}
WITHOUT_MIGRATION: dict[How, tuple[str, ...]] = {
    "restarted": ("recompute", "detection", "queue", "restart"),
    "migrated": ("recompute", "detection", "queue", "restart"),
    "migration_failed": ("recompute", "detection", "queue", "restart"),
    "planned_move": ("queue", "restart"),
    # A failure that was prevented did not happen: what it might have cost is `potential`, so nothing counts as saved.
    "preventive_move": ("migration", "step_redo"),
    "open": (),
}
POTENTIAL = ("recompute", "detection", "queue", "restart")


def incident_waste(incident: WasteInput, defaults: Defaults = Defaults()) -> IncidentWaste:
    """The waste of one incident. An open one has none yet, which is marked as estimated."""
    durations, defaulted = _durations(incident, defaults)
    actual = _terms(incident, ACTUAL[incident.how], durations, incident.overlap_ms)
    if incident.overlap_ms:
        # One restart would have served this incident and the one it overlaps, which carries the counterfactual.
        counterfactual = dict(actual)
    else:
        counterfactual = _terms(incident, WITHOUT_MIGRATION[incident.how], durations, 0)
    potential = 0
    used = set(ACTUAL[incident.how]) | set(WITHOUT_MIGRATION[incident.how])
    if incident.how == "preventive_move":
        potential = incident.gpus * sum(durations[name] for name in POTENTIAL)
        used |= set(POTENTIAL)
    estimated = tuple(name for name in durations if name in used and name in defaulted)
    return IncidentWaste(
        terms=actual,
        counterfactual_terms=counterfactual,
        potential=potential,
        estimated=("open",) if incident.how == "open" else estimated,
    )


def _durations(incident: WasteInput, defaults: Defaults) -> tuple[dict[str, int], set[str]]:
    measured = {
        "detection": (incident.detection_ms, defaults.detection_ms),
        "migration": (incident.migration_ms, defaults.migration_ms),
        "step_redo": (incident.step_ms, 0),
        "queue": (incident.queue_ms, defaults.queue_ms),
        "restart": (incident.restart_ms, defaults.restart_ms),
        "recompute": (incident.recompute_ms, defaults.checkpoint_interval_ms // 2),
    }
    durations = {name: default if value is None else value for name, (value, default) in measured.items()}
    if incident.redo_limit_ms is not None:
        durations["step_redo"] = min(durations["step_redo"], incident.redo_limit_ms)
    return durations, {name for name, (value, _) in measured.items() if value is None}


def _terms(incident: WasteInput, names: tuple[str, ...], durations: dict[str, int], overlap_ms: int) -> dict[str, int]:
    terms = {}
    for name in names:
        taken = min(overlap_ms, durations[name])
        overlap_ms -= taken
        terms[name] = incident.gpus * (durations[name] - taken)
    if incident.how != "open":
        # Rounded down once, so that the term stays an integer and never exceeds what was lost.
        terms["fail_slow"] = int(incident.gpus * incident.slow_ms * incident.slow_fraction)
        terms["preempted"] = incident.preempted_gpus * incident.preempted_ms
    return {name: value for name, value in terms.items() if value}


def overlaps_ms(stalls: Iterable[tuple[int, int]]) -> list[int]:
    """For stalls `[start, end)` of one job in order of start: how much of each an earlier one covers already."""
    covered_until: int | None = None
    overlaps = []
    for start, end in stalls:
        overlaps.append(0 if covered_until is None else max(0, min(end, covered_until) - start))
        covered_until = end if covered_until is None else max(covered_until, end)
    return overlaps


def gpu_hours(gpu_ms: int) -> Decimal:
    """GPU-hours to three decimals, half-even."""
    return (Decimal(gpu_ms) / HOUR_MS).quantize(Decimal("0.001"))


def gpu_seconds(gpu_ms: int) -> str:
    """GPU-seconds as a decimal text, exact to the millisecond."""
    return str(Decimal(gpu_ms).scaleb(-3))


def cost(gpu_ms: int, price_per_gpu_hour: Decimal) -> Decimal:
    """The price of that GPU-time in the currency's major unit, rounded half-even to two decimals, once."""
    return (Decimal(gpu_ms) * price_per_gpu_hour / HOUR_MS).quantize(Decimal("0.01"))
