"""Figures beside the verdict, never instead of it. Pure: scipy's special functions, neither Django nor pandas.

Each interval is two-sided at `confidence` for `resolved` of `counted`; without any failure it is (0, 1).
"""

from math import sqrt
from typing import Literal

import numpy as np
from scipy.special import betaincinv, betaln, gammaln, ndtri

Method = Literal["wilson", "clopper_pearson", "jeffreys"]
Interval = tuple[float, float]


def wilson(resolved: int, counted: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval (Wilson 1927), without continuity correction."""
    if counted == 0:
        return 0.0, 1.0
    z = float(ndtri(1 - (1 - confidence) / 2))
    share = resolved / counted
    centre = share + z * z / (2 * counted)
    half = z * sqrt(share * (1 - share) / counted + z * z / (4 * counted * counted))
    scale = 1 + z * z / counted
    # At the ends the exact value is 0 or 1; rounding must not leave the unit interval.
    low = 0.0 if resolved == 0 else (centre - half) / scale
    high = 1.0 if resolved == counted else (centre + half) / scale
    return low, high


def clopper_pearson(resolved: int, counted: int, confidence: float = 0.95) -> Interval:
    """The exact interval (Clopper and Pearson 1934), by quantiles of the beta distribution."""
    if counted == 0:
        return 0.0, 1.0
    tail = (1 - confidence) / 2
    low = 0.0 if resolved == 0 else float(betaincinv(resolved, counted - resolved + 1, tail))
    high = 1.0 if resolved == counted else float(betaincinv(resolved + 1, counted - resolved, 1 - tail))
    return low, high


def jeffreys(resolved: int, counted: int, confidence: float = 0.95) -> Interval:
    """The equal-tailed interval of the beta posterior under Jeffreys' prior (Brown, Cai and DasGupta 2001)."""
    if counted == 0:
        return 0.0, 1.0
    tail = (1 - confidence) / 2
    a, b = resolved + 0.5, counted - resolved + 0.5
    low = 0.0 if resolved == 0 else float(betaincinv(a, b, tail))
    high = 1.0 if resolved == counted else float(betaincinv(a, b, 1 - tail))
    return low, high


METHODS = {"wilson": wilson, "clopper_pearson": clopper_pearson, "jeffreys": jeffreys}


def interval(method: Method, resolved: int, counted: int, confidence: float = 0.95) -> Interval:
    """The interval by the named method. Raises KeyError for an unknown one."""
    return METHODS[method](resolved, counted, confidence)


def chance_of_meeting(resolved: int, counted: int, to_come: int, threshold_num: int, threshold_den: int) -> float:
    """The probability that the year ends met when `to_come` more failures follow.

    Beta-binomial: the share has Jeffreys' prior Beta(1/2, 1/2) updated by the failures so far. The verdict at the end
    is the exact integer one.
    """
    total = counted + to_come
    # The smallest number of resolved failures that meets the commitment: ⌈total·num/den⌉.
    needed = -(-total * threshold_num // threshold_den) - resolved
    if needed <= 0:
        return 1.0
    if needed > to_come:
        return 0.0
    a, b = resolved + 0.5, counted - resolved + 0.5
    # Sum the shorter tail, in logarithms: a million terms neither overflow nor take long.
    if needed <= to_come - needed:
        return max(0.0, 1.0 - _beta_binomial(range(needed), to_come, a, b))
    return min(1.0, _beta_binomial(range(needed, to_come + 1), to_come, a, b))


def _beta_binomial(outcomes: range, n: int, a: float, b: float) -> float:
    """The probability that a beta-binomial variable takes one of these values."""
    i = np.arange(outcomes.start, outcomes.stop, dtype=np.float64)
    choose = gammaln(n + 1) - gammaln(i + 1) - gammaln(n - i + 1)
    return float(np.exp(choose + betaln(i + a, n - i + b) - betaln(a, b)).sum())


def chance_of_ending_short(
    resolved: int, counted: int, elapsed_ms: int, remaining_ms: int, threshold_num: int, threshold_den: int
) -> float:
    """The probability that the year ends short. How many more failures follow is as uncertain as what becomes of them.

    Their number is negative binomial: the rate has Jeffreys' prior Gamma(1/2, 0) updated by the failures so far. Of
    many possible numbers, 65 spread evenly over them stand for all, or nine where each takes long.
    """
    if remaining_ms <= 0 or elapsed_ms <= 0:
        return 1 - chance_of_meeting(resolved, counted, 0, threshold_num, threshold_den)
    shape, ratio = counted + 0.5, remaining_ms / elapsed_ms
    mean, spread = shape * ratio, sqrt(shape * ratio * (1 + ratio))
    low, high = max(0, int(mean - 8 * spread)), int(mean + 8 * spread) + 20
    points = min(high - low + 1, 65 if high < 10_000 else 9)
    numbers = np.unique(np.linspace(low, high, points).round())
    logs = gammaln(numbers + shape) - gammaln(numbers + 1) + numbers * np.log(ratio / (1 + ratio))
    weights = np.exp(logs - logs.max())
    chances = [
        1 - chance_of_meeting(resolved, counted, int(number), threshold_num, threshold_den) for number in numbers
    ]
    return float(np.average(chances, weights=weights))


def failures_to_come(counted: int, elapsed_ms: int, remaining_ms: int) -> int:
    """Failures expected in the rest of the year at the rate measured so far, rounded to the nearest whole number."""
    if elapsed_ms <= 0 or remaining_ms <= 0:
        return 0
    return (2 * counted * remaining_ms + elapsed_ms) // (2 * elapsed_ms)
