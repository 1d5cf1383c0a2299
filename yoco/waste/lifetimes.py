"""How long runs last until their first failure, with those that have not failed yet. Pure.

Kaplan and Meier's estimate (1958); the interval of the median is that of Brookmeyer and Crowley (1982) on the scale
log(-log S), with Greenwood's variance.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from math import inf, log, sqrt
from operator import attrgetter

from scipy.special import ndtri

ROUNDING = 1e-9
"""A product of fractions that is a half can come out a little above it."""


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
    known = sorted((life for life in lives if life.watched_ms > 0), key=attrgetter("watched_ms"))
    z = float(ndtri(1 - (1 - confidence) / 2))
    share, greenwood = 1.0, 0.0
    median: int | None = None
    inside: list[int] = []
    high: int | None = None
    at_risk = len(known)
    for time, ended in groupby(known, key=attrgetter("watched_ms")):
        outcomes = [life.failed for life in ended]
        deaths, left = sum(outcomes), at_risk
        at_risk -= len(outcomes)
        if not deaths:
            continue
        share *= 1 - deaths / left
        greenwood = inf if deaths == left else greenwood + deaths / (left * (left - deaths))
        if median is None and share <= 0.5 + ROUNDING:
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
