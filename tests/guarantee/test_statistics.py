"""The figures beside the verdict: the published values, and what any interval and any chance must satisfy."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import betabinom

from yoco.guarantee.statistics import METHODS, chance_of_meeting, failures_to_come, interval


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
