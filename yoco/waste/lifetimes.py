"""How long runs last until their first failure, with those that have not failed yet. Pure.

Kaplan and Meier's estimate (1958); the interval of the median is that of Brookmeyer and Crowley (1982) on the scale
log(-log S), with Greenwood's variance.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, log, sqrt

from scipy.special import ndtri


@dataclass(frozen=True, slots=True)
class Life:
    """How long a run was watched until its first failure, or in all if it `failed` never."""

    watched_ms: int
    failed: bool


@dataclass(frozen=True, slots=True)
class Median:
    """The time within which half of the runs fail, and its 95 % interval; None where the data do not reach so far."""

    runs: int
    failed: int
    median_ms: int | None
    low_ms: int | None
    high_ms: int | None


def median_life(lives: Iterable[Life], confidence: float = 0.95) -> Median:
    """The median time to the first failure. Runs that were never watched say nothing."""
    known = sorted((life for life in lives if life.watched_ms > 0), key=lambda life: life.watched_ms)
    z = float(ndtri(1 - (1 - confidence) / 2))
    share, greenwood = 1.0, 0.0
    median: int | None = None
    inside: list[int] = []
    high: int | None = None
    for time in sorted({life.watched_ms for life in known if life.failed}):
        at_risk = sum(1 for life in known if life.watched_ms >= time)
        deaths = sum(1 for life in known if life.failed and life.watched_ms == time)
        share *= 1 - deaths / at_risk
        greenwood = inf if deaths == at_risk else greenwood + deaths / (at_risk * (at_risk - deaths))
        if median is None and share <= 0.5:
            median = time
        # How far the share lies from a half, in standard errors.
        score = -inf if share == 0 else _score(share, greenwood)
        if abs(score) <= z:
            inside.append(time)
        elif score < -z and high is None:
            high = time
    low = inside[0] if inside else high
    return Median(len(known), sum(life.failed for life in known), median, low, high)


def _score(share: float, greenwood: float) -> float:
    """log(-log S) against that of a half; positive above it."""
    error = sqrt(greenwood) / abs(log(share))
    return (log(log(2)) - log(-log(share))) / error
