"""The median time to the first failure, with runs that have not failed yet."""

import random
from math import log

from hypothesis import given
from hypothesis import strategies as st

from yoco.waste.lifetimes import Life, median_life


def test_a_worked_example() -> None:
    """Six runs, failures after 2, 4, 6 and 8; one is watched for 3 only and one for 9: S is 5/6, 5/8, 5/12, 5/24."""
    lives = [Life(time, True) for time in (2, 4, 6, 8)] + [Life(3, False), Life(9, False)]
    found = median_life(lives)
    assert (found.runs, found.failed, found.median_ms) == (6, 4, 6)
    assert found.low_ms is not None
    assert found.low_ms <= 6


def test_leaving_out_runs_that_go_on_would_halve_it() -> None:
    lives = [Life(100, True)] * 3 + [Life(1000, False)] * 7
    found = median_life(lives)
    assert found.median_ms is None  # seven of ten have lasted longer
    assert found.failed == 3


def test_the_median_of_an_even_number_is_the_one_in_the_middle() -> None:
    """A product of fractions that should be a half comes out a little above it for most of these."""
    for runs in range(2, 200, 2):
        assert median_life(Life(time, True) for time in range(1, runs + 1)).median_ms == runs // 2


def test_nothing_known() -> None:
    assert median_life([]).median_ms is None
    assert median_life([Life(0, False), Life(5, False)]).failed == 0
    one = median_life([Life(7, True)])
    assert (one.median_ms, one.high_ms) == (7, 7)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = random.Random(11)
    truth, covered, told = log(2) * 1e6, 0, 0
    for _ in range(400):
        pairs = [(rng.expovariate(1e-6), rng.uniform(0, 2e6)) for _ in range(30)]
        found = median_life(Life(max(1, round(min(pair))), pair[0] <= pair[1]) for pair in pairs)
        if found.low_ms is None:
            continue
        told += 1
        covered += found.low_ms <= truth and (found.high_ms is None or truth < found.high_ms)
    assert told > 380
    assert 0.92 <= covered / told <= 0.98


@given(st.lists(st.tuples(st.integers(0, 100), st.booleans()), max_size=30))
def test_the_bounds_hold_the_median(rows: list[tuple[int, bool]]) -> None:
    found = median_life(Life(time, failed) for time, failed in rows)
    if found.median_ms is not None and found.low_ms is not None:
        assert found.low_ms <= found.median_ms
    if found.median_ms is not None and found.high_ms is not None:
        assert found.median_ms <= found.high_ms
