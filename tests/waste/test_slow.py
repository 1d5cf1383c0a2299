"""Slow stretches of a run: found where they matter, not where it is noise, never without a baseline."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yoco.waste.slow import BASELINE_HOURS, WINDOW, Hour, pace_of

HOUR_MS = 3_600_000


def hours(*step_ms: float) -> list[Hour]:
    """An hour full of steps of each length."""
    return [Hour(n * HOUR_MS, round(HOUR_MS / each), HOUR_MS) for n, each in enumerate(step_ms)]


def test_a_slow_stretch_is_found_with_what_it_lost() -> None:
    pace = pace_of(hours(*[10_000] * 30, *[12_000] * 5, *[10_000] * 5))
    assert pace.baseline_ms == 10_000
    (slow,) = pace.slow
    assert (slow.since_ms, slow.last_ms, slow.hours) == (30 * HOUR_MS, 34 * HOUR_MS, 5)
    assert slow.factor == pytest.approx(1.2)
    # 300 steps an hour of 12 s would have taken 10 s each: ten minutes of each of the five hours.
    assert slow.lost_ms == pace.lost_ms == 5 * 600_000


@pytest.mark.parametrize(
    "step_ms",
    [
        [10_000] * 40,
        [*[10_000] * 30, 15_000, 15_000, *[10_000] * 10],  # two hours are no stretch
        [*[10_000] * 30, *[10_900] * 20],  # nine per cent do not matter
        [*[10_000, 14_000] * 12, *[12_000, 13_400, 12_000] * 4],  # that much varies within the baseline
    ],
)
def test_what_does_not_last_matter_or_stand_out_is_not_slow(step_ms: list[float]) -> None:
    assert pace_of(hours(*step_ms)).slow == ()


def test_one_quick_hour_does_not_cut_a_stretch_and_its_ends_are_slow_hours() -> None:
    (slow,) = pace_of(hours(*[10_000] * 25, 12_000, 12_000, 10_000, 12_000, 12_000, *[10_000] * 5)).slow
    assert (slow.since_ms // HOUR_MS, slow.last_ms // HOUR_MS, slow.hours) == (25, 29, 5)


def test_a_stretch_that_goes_on_is_found() -> None:
    (slow,) = pace_of(hours(*[10_000] * 24, *[11_500] * 30)).slow
    assert slow.hours == 30


def test_without_enough_hours_there_is_no_baseline() -> None:
    few = hours(*[10_000] * (BASELINE_HOURS + WINDOW - 1))
    assert pace_of([]).baseline_ms is None
    assert pace_of(few).baseline_ms is None
    # Hours of which little is known do not count.
    assert pace_of([*few, Hour(99 * HOUR_MS, 3, 30_000)]).baseline_ms is None
    assert pace_of(hours(*[10_000] * (BASELINE_HOURS + WINDOW))).baseline_ms == 10_000


def test_noise_rarely_alarms() -> None:
    """Of 200 runs of a month, with step times that vary by five per cent from hour to hour, at most two are named."""
    rng = random.Random(7)
    runs = [pace_of(hours(*[rng.gauss(10_000, 500) for _ in range(720)])) for _ in range(200)]
    assert sum(1 for run in runs if run.slow) <= 2


@given(st.lists(st.tuples(st.integers(1, 10_000), st.integers(1, 2 * HOUR_MS)), max_size=80))
def test_nothing_is_negative_and_stretches_follow_each_other(rows: list[tuple[int, int]]) -> None:
    pace = pace_of([Hour(n * HOUR_MS, steps, took) for n, (steps, took) in enumerate(rows)])
    last = -1
    for slow in pace.slow:
        assert slow.since_ms > last
        assert slow.hours >= WINDOW
        assert slow.lost_ms >= 0
        assert slow.factor > 1
        last = slow.last_ms
