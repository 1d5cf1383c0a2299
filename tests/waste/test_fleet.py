"""Rates, intervals, ETTR, spare pools and changes: the published values, and what must hold for any input."""

from math import inf, isclose

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from yoco.waste.anchors import MTTF, rate_of
from yoco.waste.badput import breakdown
from yoco.waste.changes import changes, lemons
from yoco.waste.ettr import checkpoint_interval_optimal, ettr_linear, ettr_renewal
from yoco.waste.model import HOUR_MS
from yoco.waste.rates import (
    bootstrap_interval,
    dispersion,
    mttf_hours,
    mttf_interval,
    node_rate,
    nodes_of,
    rate_measured,
)
from yoco.waste.spares import chance_enough, spares_for

WEEK = 168 * HOUR_MS * 100  # a hundred nodes for a week
MINUTES_A_DAY = 1440
# Llama 3: unexpected interruptions in 54 days on 16,384 GPUs, by cause, from which its MTTF was computed.
LLAMA_3_INTERRUPTIONS = {
    "faulty_gpu": 148,
    "hbm": 72,
    "software": 54,
    "switch_or_cable": 35,
    "host_maintenance": 32,
    "sram": 19,
    "gpu_system_processor": 17,
    "nic": 7,
    "nccl_watchdog": 7,
    "silent_corruption": 6,
    "thermal": 6,
    "ssd": 3,
    "power_supply": 3,
    "chassis": 2,
    "io_board": 2,
    "dependency": 2,
    "cpu": 2,
    "system_memory": 2,
}


def test_the_published_intervals_of_the_mttf() -> None:
    assert mttf_interval(0, 1000) == (pytest.approx(333.8, abs=0.05), inf)
    assert mttf_interval(5, 720) == (pytest.approx(61.7, abs=0.05), pytest.approx(443.5, abs=0.05))
    llama = next(anchor for anchor in MTTF if anchor.source == "Llama 3")
    failures = sum(LLAMA_3_INTERRUPTIONS.values())
    assert failures == 419
    assert 54 * 24 / failures == pytest.approx(llama.hours, abs=5e-4)
    assert mttf_interval(failures, 54 * 24) == pytest.approx(llama.interval, abs=5e-4)


def test_the_two_published_points_at_1024_gpus_are_not_on_one_curve() -> None:
    assert mttf_hours(rate_of("rsc_1"), nodes_of(1024, 8)) == pytest.approx(28.85, abs=0.005)
    assert next(anchor.hours for anchor in MTTF if anchor.gpus == 1024) == 7.9


def test_rates_without_data_are_none_and_never_nan() -> None:
    assert node_rate(3, 0) is None
    assert mttf_hours(0.0, 5) == inf
    assert mttf_interval(2, 0) == (0.0, inf)
    assert rate_measured([], []).method == "none"
    assert rate_measured([0, 0], [0, 0]).per_thousand_node_days is None
    with pytest.raises(ValueError, match="at least one GPU"):
        nodes_of(0, 8)


def test_even_weeks_get_poisson_limits_and_clustered_ones_the_bootstrap() -> None:
    even = [5, 4, 6, 5, 5, 4, 6, 5, 5, 5]
    clustered = [0, 0, 25, 0, 0, 0, 24, 0, 1, 0]
    assert dispersion(even[:5], [WEEK] * 5) is None
    calm, wild = rate_measured(even, [WEEK] * 10), rate_measured(clustered, [WEEK] * 10)
    assert (calm.method, wild.method) == ("poisson", "bootstrap")
    assert calm.per_thousand_node_days == wild.per_thousand_node_days
    assert calm.interval is not None
    assert wild.interval is not None
    assert wild.interval[1] - wild.interval[0] > 2 * (calm.interval[1] - calm.interval[0])
    assert wild.interval == bootstrap_interval(clustered, [WEEK] * 10)


def test_intervals_cover_the_truth_of_simulated_years() -> None:
    """A quarter of even and of clustered weeks (variance five times the mean), two failures a week on average."""
    rng = np.random.default_rng(3)
    weeks = 26
    for shape, floor in ((None, 0.93), (0.5, 0.86)):
        covered = 0
        for _ in range(200):
            means = np.full(weeks, 2.0) if shape is None else rng.gamma(shape, 2 / shape, weeks)
            rate = rate_measured([int(n) for n in rng.poisson(means)], [WEEK] * weeks)
            assert rate.interval is not None
            covered += rate.interval[0] <= 2 * 1000 / 700 <= rate.interval[1]
        assert covered / 200 >= floor


def test_few_failures_a_week_are_tested_too() -> None:
    """Twelve failures in a year: spread out they may be Poisson's, in two weeks they are not."""
    spread_out = [1 if week % 4 == 0 else 0 for week in range(48)]
    in_two_weeks = [6, 6, *[0] * 46]
    even, clustered = dispersion(spread_out, [WEEK] * 48), dispersion(in_two_weeks, [WEEK] * 48)
    assert even is not None
    assert clustered is not None
    assert even.poisson
    assert not clustered.poisson
    assert dispersion([1] * 4 + [0] * 44, [WEEK] * 48) is None  # four failures say nothing


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 10 * WEEK)), min_size=1, max_size=60))
def test_a_measured_rate_lies_in_its_interval_or_says_that_there_is_none(weeks: list[tuple[int, int]]) -> None:
    rate = rate_measured([count for count, _ in weeks], [exposure for _, exposure in weeks])
    assert rate.per_thousand_node_days is not None
    assert rate.per_thousand_node_days >= 0
    if rate.method == "poisson":
        assert rate.interval is not None
        assert rate.interval[0] <= rate.per_thousand_node_days <= rate.interval[1]
    if rate.interval is not None:
        assert 0 <= rate.interval[0] <= rate.interval[1]


def test_the_published_ettr() -> None:
    failures_a_minute = nodes_of(16_000, 8) * 6.50 / 1000 / MINUTES_A_DAY
    assert ettr_linear(interval=60, failure_rate=failures_a_minute, restart=5) == pytest.approx(0.684, abs=5e-4)
    assert ettr_linear(interval=5, failure_rate=failures_a_minute, restart=5) == pytest.approx(0.932, abs=5e-4)


def test_the_best_checkpoint_interval_is_where_the_linear_ettr_peaks() -> None:
    rate, write = 1 / 500, 2.0
    best = checkpoint_interval_optimal(failure_rate=rate, write=write)
    assert best == pytest.approx((2 * write / rate) ** 0.5)
    peak = ettr_linear(interval=best, failure_rate=rate, restart=5, write=write)
    # First order: within a percent of the best of all intervals.
    others = [ettr_linear(interval=d, failure_rate=rate, restart=5, write=write) for d in range(1, 400)]
    assert isclose(peak, max(others), rel_tol=0.01)
    assert checkpoint_interval_optimal(failure_rate=0, write=2) == inf


@example(interval=1.0, failure_rate=5e-324, restart=0.0, write=0.0, wait=0.0)
@given(
    interval=st.floats(0.01, 1e4),
    failure_rate=st.floats(0, 10),
    restart=st.floats(0, 1e3),
    write=st.floats(0, 100),
    wait=st.floats(0, 1e3),
)
def test_ettr_is_a_share(interval: float, failure_rate: float, restart: float, write: float, wait: float) -> None:
    renewal = ettr_renewal(interval=interval, failure_rate=failure_rate, restart=restart, write=write, wait=wait)
    linear = ettr_linear(interval=interval, failure_rate=failure_rate, restart=restart, write=write)
    assert 0 <= renewal <= 1.000001
    assert 0 <= linear <= 1
    if failure_rate * (interval + write + restart) < 0.01:
        assert renewal == pytest.approx(
            ettr_renewal(interval=interval, failure_rate=failure_rate, restart=restart, write=write), abs=10 * wait
        )
        assert linear == pytest.approx(
            ettr_renewal(interval=interval, failure_rate=failure_rate, restart=restart, write=write), abs=0.01
        )


@pytest.mark.parametrize(
    "bad", [{"interval": 0.0}, {"interval": -1.0}, {"restart": float("nan")}, {"failure_rate": inf}]
)
def test_ettr_refuses_what_makes_no_sense(bad: dict[str, float]) -> None:
    values = {"interval": 60.0, "failure_rate": 0.1, "restart": 5.0} | bad
    with pytest.raises(ValueError, match="must be"):
        ettr_linear(**values)
    with pytest.raises(ValueError, match="must be"):
        ettr_renewal(**values)


@pytest.mark.parametrize("method", ["poisson", "binomial"])
def test_the_spare_pool_is_the_smallest_that_is_enough(method: str) -> None:
    fleet = {"nodes": 256, "rate": 4.0, "repair_hours": 48.0, "method": method}
    spares = spares_for(target=0.999, **fleet)  # type: ignore[arg-type]
    assert chance_enough(spares=spares, **fleet) >= 0.999  # type: ignore[arg-type]
    assert chance_enough(spares=spares - 1, **fleet) < 0.999  # type: ignore[arg-type]


def test_the_spare_pool_against_a_simulation() -> None:
    """Poisson against what independent repairs give: 256 nodes, a failure each 250 days, 48 h of repair."""
    generator = np.random.default_rng(7)
    down = generator.binomial(256, 48 / (48 + 6000), size=200_000)
    enough = float((down <= 5).mean())
    assert chance_enough(spares=5, nodes=256, rate=4.0, repair_hours=48) == pytest.approx(enough, abs=0.005)
    assert chance_enough(spares=5, nodes=256, rate=4.0, repair_hours=48, method="binomial") == pytest.approx(
        enough, abs=0.002
    )


def test_a_doubled_rate_is_seen_and_a_doubled_fleet_is_not() -> None:
    weeks = [4, 5, 3, 4, 5, 4, 3, 4, 5, 4, 4, 3]
    doubled = [10, 9, 11, 10, 9, 10, 11, 10, 10, 9, 10, 9]
    found = changes(weeks + doubled, [WEEK] * 24)
    assert [(one.direction, one.since) for one in found] == [("up", 12)]
    assert 12 < found[0].seen < 18
    assert changes(weeks + doubled, [WEEK] * 12 + [int(2.4 * WEEK)] * 12) == []
    assert changes(weeks, [WEEK] * 12) == []
    assert [one.direction for one in changes(doubled + [1, 0] * 6, [WEEK] * 24)] == ["down"]


def test_lemons_are_beyond_chance() -> None:
    failures = {f"node-{number}": 1 for number in range(40)} | {"lemon": 6, "unlucky": 2}
    assert [one.node for one in lemons(failures, 400)] == ["lemon"]
    assert lemons({}, 0) == []
    assert lemons({"a": 100}, 1) == []


@given(
    total=st.integers(0, 10**12),
    terms=st.dictionaries(
        st.sampled_from(
            ["recompute", "detection", "queue", "restart", "migration", "step_redo", "fail_slow", "preempted"]
        ),
        st.integers(0, 10**11),
    ),
)
def test_a_breakdown_always_adds_up(total: int, terms: dict[str, int]) -> None:
    parts = breakdown(total=total, terms=terms)
    assert parts.total + parts.excess == parts.productive + sum(parts.badput.values())
    assert min(parts.productive, parts.excess) == 0
