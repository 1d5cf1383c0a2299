"""The scenario calculator: published totals, what dominates what, and what is refused."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yoco.waste.model import HOUR_MS, MINUTE_MS
from yoco.waste.scenario import (
    ANNOUNCEMENT,
    MONTHLY_BILL,
    STRATEGIES,
    Outcome,
    Scenario,
    failures_per_year,
    outcomes,
    refusals,
)


def by_strategy(scenario: Scenario) -> dict[str, Outcome]:
    return {one.strategy: one for one in outcomes(scenario)}


def test_the_announcement_costs_six_million() -> None:
    restart = by_strategy(ANNOUNCEMENT)["checkpoint_restart"]
    assert restart.per_failure_gpu_ms == 2048 * 3 * HOUR_MS
    assert restart.money == Decimal("5999616.00")


def test_the_monthly_bill() -> None:
    assert round(by_strategy(MONTHLY_BILL)["checkpoint_restart"].money / 12) == 307_524


def test_failures_a_year_from_a_rate() -> None:
    assert failures_per_year(gpus=2048, gpus_per_node=8, rate=Decimal("4.0")) == Decimal("373.76")


def test_every_strategy_by_hand() -> None:
    scenario = Scenario(
        gpus=1024, price=Decimal(2), failures_per_year=Decimal(100), replica_groups=4, step_ms=30_000, spare_nodes=0
    )
    minutes = {
        "checkpoint_restart": 10 + 5 + 15 + 30,
        "shrinking_groups": 10 + 3 + (5 + 15) / 4,
        "hot_spares": 10 + 15 + 30 + 5,  # no spare: every failure waits
        "live_migration": 0.9 * 13.5 + 0.1 * 63,
    }
    for strategy, one in by_strategy(scenario).items():
        assert one.per_failure_gpu_ms == pytest.approx(1024 * minutes[strategy] * MINUTE_MS, rel=1e-9), strategy
        assert one.lost_gpu_ms == pytest.approx(100 * one.per_failure_gpu_ms, rel=1e-9)
        assert 0 < one.effective_share < 1


def test_spares_shorten_the_wait_and_cost_their_standing_idle() -> None:
    none, some = (by_strategy(replace(ANNOUNCEMENT, spare_nodes=count))["hot_spares"] for count in (0, 4))
    assert some.lost_gpu_ms < none.lost_gpu_ms
    assert (none.idle_gpu_ms, some.idle_gpu_ms) == (0, 4 * 8 * 8760 * HOUR_MS)


@pytest.mark.parametrize(
    ("change", "field", "code"),
    [
        ({"gpus": 0}, "gpus", "out_of_range"),
        ({"resolved_share": Decimal("1.01")}, "resolved_share", "out_of_range"),
        ({"price": Decimal(-1)}, "price", "out_of_range"),
        ({"restart_ms": -1}, "restart_ms", "out_of_range"),
        ({"replica_groups": 3}, "replica_groups", "not_divisible"),
        ({"checkpoint_interval_ms": 0}, "checkpoint_interval_ms", "no_interval"),
        ({"checkpoint_interval_ms": 30 * HOUR_MS}, "checkpoint_interval_ms", "interval_beyond_mttf"),
        ({"restart_ms": 22 * HOUR_MS}, "failures_per_year", "no_progress"),
    ],
)
def test_impossible_combinations_are_refused_with_the_field_and_the_reason(
    change: dict[str, object], field: str, code: str
) -> None:
    scenario = replace(ANNOUNCEMENT, **change)  # type: ignore[arg-type]
    assert (field, code) in [(one.field, one.code) for one in refusals(scenario)]
    with pytest.raises(ValueError, match="impossible"):
        outcomes(scenario)


@given(
    gpus=st.integers(1, 4096),
    failures=st.decimals(0, 2000, places=1),
    interval=st.integers(1, 24 * 60),
    migration=st.integers(0, 600),
    share=st.decimals(0, 1, places=3),
)
def test_a_loss_is_never_negative_and_never_the_whole_year(
    gpus: int, failures: Decimal, interval: int, migration: int, share: Decimal
) -> None:
    scenario = Scenario(
        gpus=gpus,
        price=Decimal("2.50"),
        failures_per_year=failures,
        checkpoint_interval_ms=interval * MINUTE_MS,
        migration_ms=migration * 1000,
        resolved_share=share,
        replica_groups=1,
    )
    if refusals(scenario):
        return
    year = {one.strategy: one for one in outcomes(scenario)}
    assert set(year) == set(STRATEGIES)
    for one in year.values():
        assert one.lost_gpu_ms >= 0
        assert one.money >= 0
        assert one.effective_share <= 1
    # A spare can only spare the wait.
    assert year["hot_spares"].lost_gpu_ms <= year["checkpoint_restart"].lost_gpu_ms
