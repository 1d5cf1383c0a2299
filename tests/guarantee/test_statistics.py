"""The figures beside the verdict: the published values, and what any interval and any chance must satisfy."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import betabinom

from yoco.guarantee.statistics import (
    METHODS,
    chance_of_ending_short,
    chance_of_meeting,
    failures_to_come,
    interval,
)


@pytest.mark.parametrize(
    ("method", "low", "high"),
    [("wilson", 0.6990, 0.9721), ("clopper_pearson", 0.6830, 0.9877), ("jeffreys", 0.7161, 0.9786)],
)
def test_published_intervals_of_18_of_20(method: str, low: float, high: float) -> None:
    assert interval(method, 18, 20) == pytest.approx((low, high), abs=5e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("resolved", "counted", "to_come", "chance"),
    [(18, 20, 20, 0.5970), (95, 100, 100, 0.9936), (88, 100, 100, 0.2076)],
)
def test_published_chances_of_meeting(resolved: int, counted: int, to_come: int, chance: float) -> None:
    assert chance_of_meeting(resolved, counted, to_come, 90, 100) == pytest.approx(chance, abs=5e-5)


def test_nothing_to_come_leaves_no_chance() -> None:
    assert chance_of_meeting(9, 10, 0, 90, 100) == 1.0
    assert chance_of_meeting(8, 10, 0, 90, 100) == 0.0
    assert chance_of_meeting(0, 50, 10, 90, 100) == 0.0


def test_a_short_list_of_futures_counted_by_hand() -> None:
    """Of 2 failures to come after 1 of 1, at least 2 of 3 must be resolved: 1 minus the chance that both are not."""
    a, b = 1.5, 0.5
    both_lost = b * (b + 1) / ((a + b) * (a + b + 1))
    assert chance_of_meeting(1, 1, 2, 2, 3) == pytest.approx(1 - both_lost)


@pytest.mark.parametrize("method", METHODS)
def test_without_failures_an_interval_says_nothing(method: str) -> None:
    assert interval(method, 0, 0) == (0.0, 1.0)  # type: ignore[arg-type]


@given(method=st.sampled_from(sorted(METHODS)), n=st.integers(1, 10**6), data=st.data())
def test_an_interval_holds_the_share(method: str, n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    low, high = interval(method, k, n)  # type: ignore[arg-type]
    assert 0 <= low <= k / n <= high <= 1
    assert (low == 0) == (k == 0) or method == "wilson"


@given(n=st.integers(0, 200), to_come=st.integers(0, 200), data=st.data())
def test_a_chance_is_a_probability_and_grows_with_success(n: int, to_come: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    chance = chance_of_meeting(k, n, to_come, 90, 100)
    assert -1e-12 <= chance <= 1 + 1e-12
    if k < n:
        assert chance_of_meeting(k + 1, n, to_come, 90, 100) >= chance - 1e-9


@pytest.mark.parametrize(
    ("resolved", "counted", "to_come"), [(0, 0, 7), (3, 3, 1), (95, 100, 20_000), (900, 1000, 5_000), (1, 9, 300)]
)
def test_a_chance_is_the_tail_of_a_beta_binomial(resolved: int, counted: int, to_come: int) -> None:
    needed = -(-(counted + to_come) * 9 // 10) - resolved
    tail = betabinom.sf(needed - 1, to_come, resolved + 0.5, counted - resolved + 0.5)
    assert chance_of_meeting(resolved, counted, to_come, 90, 100) == pytest.approx(float(tail), abs=1e-8)


def test_the_rest_of_the_year_is_looked_ahead_at_the_measured_rate() -> None:
    assert failures_to_come(10, 100, 200) == 20
    assert failures_to_come(1, 3, 2) == 1  # two thirds of a failure
    assert failures_to_come(1, 3, 1) == 0
    assert failures_to_come(0, 10, 10) == failures_to_come(5, 0, 10) == failures_to_come(5, 10, 0) == 0


def test_methods_differ_where_they_should() -> None:
    widths = {method: interval(method, 18, 20) for method in METHODS}  # type: ignore[arg-type]
    assert all(a != b for a, b in itertools.combinations(widths.values(), 2))


def test_the_chance_of_ending_short_knows_that_more_failures_may_come_than_expected() -> None:
    # One of two failed, a tenth of the year is left: a fifth of a failure is expected, so the rest hardly matters.
    assert chance_of_ending_short(1, 2, 90, 10, 90, 100) == pytest.approx(1.0, abs=1e-3)
    # With eight of nine resolved, one more success is needed, and one failure or none leaves the year short.
    assert 0.3 < chance_of_ending_short(8, 9, 50, 50, 90, 100) < 1
    # Nothing to come: the year is what it is.
    assert chance_of_ending_short(9, 10, 100, 0, 90, 100) == 0.0
    assert chance_of_ending_short(8, 10, 100, 0, 90, 100) == 1.0


def test_the_chance_of_ending_short_is_calibrated() -> None:
    """Of simulated years, as many end short as their chances say; with the expected number alone, too few would."""
    rng = random.Random(5)
    said, was = [0.0, 0.0], [0, 0]
    for _ in range(1500):
        share, failures = rng.betavariate(0.5, 0.5), sum(rng.random() < 0.5 for _ in range(20))
        to_come = sum(rng.random() < 0.5 for _ in range(20))
        resolved = sum(rng.random() < share for _ in range(failures))
        if not failures:
            continue
        chance = chance_of_ending_short(resolved, failures, 50, 50, 90, 100)
        total = resolved + sum(rng.random() < share for _ in range(to_come))
        half = chance >= 0.5
        said[half] += chance
        was[half] += total * 100 < 90 * (failures + to_come)
    assert said[0] == pytest.approx(was[0], abs=25)
    assert said[1] == pytest.approx(was[1], abs=25)
