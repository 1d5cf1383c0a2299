"""When a rate changed, and which nodes fail more than chance allows. Pure.

- Change: two-sided CUSUM of weekly counts in standard deviations (Page 1954), reference 0.5 and limit 5, which alarms
  by chance about once in 465 weeks. The mean and deviation are those of the first half, at least eight weeks.
- Lemon: a node with at least three failures, of which so many would come by chance in fewer than one fleet of a
  hundred: P(X ≥ x) · nodes < 0.01 with X Poisson at the fleet's mean per node (Bonferroni).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Literal

from scipy.special import pdtrc

REFERENCE = 0.5
LIMIT = 5.0
MIN_WEEKS = 8
LEMON_FAILURES = 3
LEMON_CHANCE = 0.01


@dataclass(frozen=True, slots=True)
class Change:
    """From which week on the counts lie higher or lower than before, and in which week that became certain."""

    since: int
    seen: int
    direction: Literal["up", "down"]


def changes(counts: Sequence[int], exposures_ms: Sequence[int]) -> list[Change]:
    """The changes in weekly counts of failures, each against what its week's exposure lets expect, in order.

    Empty with fewer than sixteen weeks or a baseline without exposure.
    """
    baseline = max(MIN_WEEKS, len(counts) // 2)
    exposure = sum(exposures_ms[:baseline])
    if len(counts) < 2 * MIN_WEEKS or exposure <= 0:
        return []
    rate = sum(counts[:baseline]) / exposure
    expected = [rate * share for share in exposures_ms]
    # A quiet baseline still varies as Poisson counts do; an uneven one more.
    squares = [(count - mean) ** 2 / mean for count, mean in zip(counts[:baseline], expected, strict=False) if mean]
    spread = max(1.0, sum(squares) / (baseline - 1))
    found: list[Change] = []
    high = low = 0.0
    high_from = low_from = 0
    for week, (count, mean) in enumerate(zip(counts, expected, strict=True)):
        score = (count - mean) / sqrt(max(1.0, spread * mean))
        if high == 0.0:
            high_from = week
        if low == 0.0:
            low_from = week
        high, low = max(0.0, high + score - REFERENCE), max(0.0, low - score - REFERENCE)
        if high > LIMIT:
            found.append(Change(high_from, week, "up"))
            high = 0.0
        if low > LIMIT:
            found.append(Change(low_from, week, "down"))
            low = 0.0
    return _joined(found)


def _joined(found: list[Change]) -> list[Change]:
    """A level that stays high alarms again and again: only the first alarm of a direction is a change."""
    return [one for index, one in enumerate(found) if index == 0 or found[index - 1].direction != one.direction]


@dataclass(frozen=True, slots=True)
class Lemon:
    """A node that failed more often than chance allows."""

    node: str
    failures: int
    chance: float


def lemons(failures: Mapping[str, int], nodes: int, total: int | None = None) -> list[Lemon]:
    """The nodes beyond chance, worst first. `failures` names nodes that failed; `nodes` is the size of the fleet.

    `total` is all failures of the fleet, where `failures` names only the nodes that failed often.
    """
    fleet = max(nodes, len(failures))
    if fleet == 0:
        return []
    mean = (sum(failures.values()) if total is None else total) / fleet
    found = [
        Lemon(node, count, min(1.0, float(pdtrc(count - 1, mean)) * fleet))
        for node, count in failures.items()
        if count >= LEMON_FAILURES
    ]
    return sorted(
        (one for one in found if one.chance < LEMON_CHANCE), key=lambda one: (-one.failures, one.chance, one.node)
    )
