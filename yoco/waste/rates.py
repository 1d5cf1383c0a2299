"""How often nodes fail, and how sure that is. Pure: scipy and numpy, no Django, no pandas, no clock.

Exposure is node-time in milliseconds: nodes of a run times how long it was watched. Rates are failures per 1,000
node-days, the unit of the published figures; MTTF is in hours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
from scipy.special import chdtrc, chdtri, ndtr, stdtrit

from yoco.waste.model import HOUR_MS

GPUS_PER_NODE = 8  # where nobody says otherwise; published rates are of such nodes
THOUSAND_NODE_DAYS_MS = 1000 * 24 * HOUR_MS
MIN_WEEKS = 8  # with fewer, neither the test of dispersion nor the bootstrap says anything
MIN_FAILURES = 5
RESAMPLES = 2000
FEW_A_WEEK = 5  # below, χ² is a poor approximation and the test is simulated
# Well above the usual 0.05: taking clustered failures for Poisson ones is the error that misleads.
OVERDISPERSED_BELOW = 0.20
SEED = 1  # fixed, so that the same data always print the same figure

Interval = tuple[float, float]


def nodes_of(gpus: int, gpus_per_node: int) -> int:
    """Nodes that hold so many GPUs: ⌈gpus / gpus_per_node⌉. Raises ValueError for none."""
    if gpus <= 0 or gpus_per_node <= 0:
        raise ValueError("A rate needs at least one GPU and one GPU per node.")
    return -(-gpus // gpus_per_node)


def node_rate(failures: int, exposure_ms: int) -> float | None:
    """r_f: failures per 1,000 node-days; None without exposure."""
    return failures * THOUSAND_NODE_DAYS_MS / exposure_ms if exposure_ms > 0 else None


def mttf_hours(rate: float, nodes: int) -> float:
    """MTTF = 1 / (N · r_f): mean hours between failures of a job on so many nodes. Infinite at rate zero."""
    return inf if rate <= 0 else 24_000 / (nodes * rate)


def mttf_interval(failures: int, hours: float, confidence: float = 0.95) -> Interval:
    """Bounds of the MTTF after `failures` in `hours` of time-terminated observation, if failures are Poisson.

    From 2T/χ² at .975 with 2n+2 degrees of freedom to 2T/χ² at .025 with 2n; without any failure a lower bound only,
    one-sided.
    """
    if hours <= 0:
        return 0.0, inf
    # chdtri takes the upper tail's probability.
    if failures == 0:
        return 2 * hours / float(chdtri(2, 1 - confidence)), inf
    tail = (1 - confidence) / 2
    return 2 * hours / float(chdtri(2 * failures + 2, tail)), 2 * hours / float(chdtri(2 * failures, 1 - tail))


@dataclass(frozen=True, slots=True)
class Dispersion:
    """Variance over mean of failures per week at the mean rate; 1 if they were Poisson."""

    index: float
    p_value: float

    @property
    def poisson(self) -> bool:
        """Whether Poisson limits may be shown."""
        return self.p_value >= OVERDISPERSED_BELOW


def dispersion(counts: Sequence[int], exposures_ms: Sequence[int]) -> Dispersion | None:
    """Fisher's index of dispersion over weeks of different exposure, tested upwards; None with too little data.

    Σ(x-m)²/m with m the week's share of all failures is about χ² with k-1 degrees of freedom (Cochran 1954). With few
    failures a week its distribution is simulated: given their number, Poisson failures fall on the weeks by exposure.
    """
    weeks = [(count, exposure) for count, exposure in zip(counts, exposures_ms, strict=True) if exposure > 0]
    total, exposure = sum(count for count, _ in weeks), sum(share for _, share in weeks)
    if len(weeks) < MIN_WEEKS or total < MIN_FAILURES:
        return None
    shares = np.asarray([share for _, share in weeks], dtype=np.float64) / exposure
    expected = total * shares
    statistic = float(((np.asarray([count for count, _ in weeks]) - expected) ** 2 / expected).sum())
    if total >= FEW_A_WEEK * len(weeks):
        chance = float(chdtrc(len(weeks) - 1, statistic))
    else:
        drawn = np.random.default_rng(SEED).multinomial(total, shares, size=RESAMPLES)
        reached = int((((drawn - expected) ** 2 / expected).sum(axis=1) >= statistic * (1 - 1e-9)).sum())
        chance = (1 + reached) / (1 + RESAMPLES)
    return Dispersion(index=statistic / (len(weeks) - 1), p_value=chance)


def bootstrap_interval(counts: Sequence[int], exposures_ms: Sequence[int], confidence: float = 0.95) -> Interval | None:
    """Bounds of r_f by resampling whole weeks, which keeps what clusters within a week; None with too little data.

    The tails are those of Student's t with √(k/(k-1)) times the spread (Hesterberg 2015): plain percentiles of so few
    weeks are too narrow.
    """
    weeks = [(count, exposure) for count, exposure in zip(counts, exposures_ms, strict=True) if exposure > 0]
    if len(weeks) < MIN_WEEKS or not any(count for count, _ in weeks):
        return None
    data = np.asarray(weeks, dtype=np.float64)
    size = len(data)
    times_drawn = np.random.default_rng(SEED).multinomial(size, np.full(size, 1 / size), size=RESAMPLES)
    sums = times_drawn @ data
    rates = sums[:, 0] * THOUSAND_NODE_DAYS_MS / sums[:, 1]
    tail = float(ndtr(sqrt(size / (size - 1)) * stdtrit(size - 1, (1 - confidence) / 2)))
    low, high = np.quantile(rates, [tail, 1 - tail])
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Rate:
    """A measured rate with the interval that its own data allow. `method` is "poisson", "bootstrap" or "none"."""

    failures: int
    exposure_ms: int
    per_thousand_node_days: float | None
    interval: Interval | None
    method: str
    dispersion: Dispersion | None


def rate_measured(counts: Sequence[int], exposures_ms: Sequence[int]) -> Rate:
    """r_f over these weeks. Poisson limits unless the weeks are shown to be over-dispersed; then the bootstrap's."""
    failures, exposure = sum(counts), sum(exposures_ms)
    rate = node_rate(failures, exposure)
    spread = dispersion(counts, exposures_ms)
    if rate is None:
        return Rate(failures, exposure, None, None, "none", None)
    if spread is not None and not spread.poisson:
        return Rate(failures, exposure, rate, bootstrap_interval(counts, exposures_ms), "bootstrap", spread)
    low, high = mttf_interval(failures, exposure / HOUR_MS)
    return Rate(failures, exposure, rate, (0.0 if high == inf else 24_000 / high, 24_000 / low), "poisson", spread)


def availability(up_ms: int, down_ms: int) -> float | None:
    """up / (up + down); None without any time."""
    total = up_ms + down_ms
    return up_ms / total if total > 0 else None
