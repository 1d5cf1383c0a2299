"""Runs that lost speed without failing. Pure.

The baseline of a run is the median step time of its first day of hours that count. Slow is a stretch of hours, at least
three, in which

- the median of every three hours together is at least 1.10 times the baseline, and
- an upward CUSUM of the hours in standard deviations (Page 1954; reference 1, limit 10) alarms. The deviation is that
  of the baseline's hours, by their median absolute deviation, and two per cent of the baseline at least.

The first says that it matters, the second that it is no noise: of runs whose hours vary by five per cent, fewer than
one in a hundred is named by chance in a month, by ten per cent one in sixty (simulated). Work that takes longer by
itself, such as longer sequences, looks the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from yoco.waste.model import MINUTE_MS

BASELINE_HOURS = 24
WINDOW = 3
FACTOR = 1.10
REFERENCE = 1.0
LIMIT = 10.0
NORMAL_MAD = 1.4826  # a normal distribution's deviation over its median absolute deviation
MIN_SPREAD = 0.02
MIN_MS = 10 * MINUTE_MS  # an hour of which less is known does not count


@dataclass(frozen=True, slots=True)
class Hour:
    """Steps of an hour and the milliseconds that they took. `at_ms` is when the hour began."""

    at_ms: int
    steps: int
    took_ms: int

    @property
    def step_ms(self) -> float:
        return self.took_ms / self.steps


@dataclass(frozen=True, slots=True)
class Slow:
    """A stretch of slow hours. `lost_ms` is what the same steps took longer than at the baseline."""

    since_ms: int
    last_ms: int
    hours: int
    step_ms: float
    factor: float
    lost_ms: int


@dataclass(frozen=True, slots=True)
class Pace:
    """A run's step time: `hours` that count, and its baseline, None with fewer than 27 of them."""

    hours: tuple[Hour, ...]
    baseline_ms: float | None
    slow: tuple[Slow, ...]

    @property
    def lost_ms(self) -> int:
        """Milliseconds that each GPU of the run lost by slowness."""
        return sum(one.lost_ms for one in self.slow)


def pace_of(hours: Sequence[Hour]) -> Pace:
    """The pace of one run from its hours in order of time, without those that an incident touched."""
    known = tuple(hour for hour in hours if hour.took_ms >= MIN_MS)
    if len(known) < BASELINE_HOURS + WINDOW:
        return Pace(known, None, ())
    first = [hour.step_ms for hour in known[:BASELINE_HOURS]]
    baseline = median(first)
    deviation = NORMAL_MAD * median(abs(value - baseline) for value in first)
    spread = max(deviation, MIN_SPREAD * baseline)
    later = known[BASELINE_HOURS:]
    stretches = _stretches(later, FACTOR * baseline)
    slow = [_slow(stretch, baseline) for stretch in stretches if _alarms(stretch, baseline, spread)]
    return Pace(known, baseline, tuple(slow))


def _stretches(hours: Sequence[Hour], limit: float) -> list[Sequence[Hour]]:
    """Hours that stay above the limit by the median of three, without quick ones at either end."""
    found: list[Sequence[Hour]] = []
    start: int | None = None
    for index in range(len(hours) - WINDOW + 2):
        window = [hour.step_ms for hour in hours[index : index + WINDOW]]
        above = len(window) == WINDOW and median(window) >= limit
        if above and start is None:
            start = index
        if not above and start is not None:
            found.append(_trimmed(hours[start : index + WINDOW - 1], limit))
            start = None
    return [stretch for stretch in found if len(stretch) >= WINDOW]


def _trimmed(hours: Sequence[Hour], limit: float) -> Sequence[Hour]:
    slow = [index for index, hour in enumerate(hours) if hour.step_ms >= limit]
    return hours[slow[0] : slow[-1] + 1]


def _alarms(hours: Sequence[Hour], baseline: float, spread: float) -> bool:
    total = 0.0
    for hour in hours:
        total = max(0.0, total + (hour.step_ms - baseline) / spread - REFERENCE)
        if total > LIMIT:
            return True
    return False


def _slow(hours: Sequence[Hour], baseline: float) -> Slow:
    steps, took = sum(hour.steps for hour in hours), sum(hour.took_ms for hour in hours)
    typical = median(hour.step_ms for hour in hours)
    return Slow(
        since_ms=hours[0].at_ms,
        last_ms=hours[-1].at_ms,
        hours=len(hours),
        step_ms=typical,
        factor=typical / baseline,
        lost_ms=max(0, round(took - steps * baseline)),
    )
