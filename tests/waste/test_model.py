"""The published figures of docs/waste.md, and that parts always add up to the total."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yoco.waste.model import (
    HOUR_MS,
    MINUTE_MS,
    IncidentWaste,
    WasteInput,
    cost,
    gpu_hours,
    gpu_seconds,
    incident_waste,
    overlaps_ms,
)

PUBLISHED = {
    "gpus": 2048,
    "detection_ms": 10 * MINUTE_MS,
    "queue_ms": 5 * MINUTE_MS,
    "restart_ms": 15 * MINUTE_MS,
    "recompute_ms": 30 * MINUTE_MS,
    "migration_ms": 3 * MINUTE_MS,
    "step_ms": 0,
}
PRICE = Decimal("2.50")


def waste(how: str, **changes: object) -> IncidentWaste:
    return incident_waste(WasteInput(how=how, **{**PUBLISHED, **changes}))  # type: ignore[arg-type]


def test_a_restart_costs_what_is_published() -> None:
    restart = waste("restarted")
    assert gpu_hours(restart.actual) == Decimal("2048.000")
    assert cost(restart.actual, PRICE) == Decimal("5120.00")
    assert (restart.saved, restart.estimated) == (0, ())


def test_a_migration_saves_what_is_published() -> None:
    migrated = waste("migrated")
    assert gpu_hours(migrated.actual) == Decimal("443.733")
    assert gpu_hours(migrated.saved) == Decimal("1604.267")
    assert cost(migrated.saved, PRICE) == Decimal("4010.67")
    # Detection happens either way, so it cancels: saved is G·(Q + R + C - M - s).
    assert migrated.saved == 2048 * (5 + 15 + 30 - 3) * MINUTE_MS
    assert waste("migrated", step_ms=500).saved == migrated.saved - 2048 * 500


def test_a_failed_migration_costs_what_is_published_and_saves_less_than_nothing() -> None:
    failed = waste("migration_failed")
    assert gpu_hours(failed.actual) == Decimal("2150.400")
    assert failed.saved == -2048 * 3 * MINUTE_MS


def test_the_published_monthly_bill() -> None:
    one = incident_waste(
        WasteInput(
            how="restarted",
            gpus=1024,
            detection_ms=0,
            queue_ms=0,
            restart_ms=20 * MINUTE_MS,
            recompute_ms=45 * MINUTE_MS,
        )
    )
    a_month = cost(one.actual, Decimal(3)) * Decimal(730) / Decimal("7.9")
    assert a_month.quantize(Decimal(1)) == Decimal(307_524)


def test_a_planned_move_avoids_a_queue_and_a_restart() -> None:
    planned = waste("planned_move")
    assert planned.actual == 2048 * 3 * MINUTE_MS
    assert planned.saved == 2048 * (5 + 15 - 3) * MINUTE_MS
    assert planned.potential == 0


def test_a_preventive_move_has_potential_that_is_never_saved() -> None:
    preventive = waste("preventive_move")
    assert gpu_hours(preventive.potential) == Decimal("2048.000")
    assert preventive.saved == 0
    assert preventive.actual == 2048 * 3 * MINUTE_MS


def test_defaults_are_the_published_ones_and_are_named() -> None:
    assert gpu_hours(incident_waste(WasteInput(how="restarted", gpus=2048)).actual) == Decimal("2048.000")
    assert incident_waste(WasteInput(how="restarted", gpus=1)).estimated == (
        "detection",
        "queue",
        "restart",
        "recompute",
    )
    assert waste("migrated", step_ms=None, recompute_ms=None).estimated == ("step_redo", "recompute")
    assert waste("planned_move", recompute_ms=None).estimated == ()


def test_an_open_incident_has_no_waste_yet_and_says_so() -> None:
    still = waste("open", preempted_gpus=8, preempted_ms=1000)
    assert (still.actual, still.counterfactual, still.estimated) == (0, 0, ("open",))


def test_preempted_jobs_and_slow_steps_are_added() -> None:
    from fractions import Fraction

    more = waste("migrated", preempted_gpus=8, preempted_ms=HOUR_MS, slow_fraction=Fraction(1, 4), slow_ms=2 * HOUR_MS)
    assert more.terms["preempted"] == 8 * HOUR_MS
    assert more.terms["fail_slow"] == 2048 * HOUR_MS // 2
    assert more.saved == waste("migrated").saved


def test_a_redone_step_is_no_older_than_the_checkpoint() -> None:
    assert waste("migrated", step_ms=5000, redo_limit_ms=2000).terms["step_redo"] == 2048 * 2000


def test_an_incident_inside_another_of_the_same_job_adds_nothing() -> None:
    twice = waste("migrated", overlap_ms=13 * MINUTE_MS)
    assert (twice.actual, twice.saved) == (0, 0)
    partly = waste("migrated", overlap_ms=11 * MINUTE_MS)
    assert partly.actual == 2048 * 2 * MINUTE_MS
    assert partly.saved == 0


def test_overlaps_of_stalls() -> None:
    assert overlaps_ms([(0, 10), (2, 5), (8, 12), (11, 20), (30, 31)]) == [0, 3, 2, 1, 0]
    assert overlaps_ms([]) == []


def test_gpu_seconds_are_exact() -> None:
    assert gpu_seconds(1_597_440_001) == "1597440.001"
    assert gpu_seconds(0) == "0.000"


def test_a_negative_input_is_refused() -> None:
    with pytest.raises(ValueError, match="not negative"):
        waste("restarted", queue_ms=-1)


@given(
    how=st.sampled_from(["restarted", "migrated", "migration_failed", "planned_move", "preventive_move", "open"]),
    gpus=st.integers(0, 10**6),
    times=st.lists(st.none() | st.integers(0, 10**10), min_size=6, max_size=6),
    overlap=st.integers(0, 10**10),
)
def test_parts_are_never_negative_and_add_up(how: str, gpus: int, times: list[int | None], overlap: int) -> None:
    names = ("detection_ms", "queue_ms", "restart_ms", "recompute_ms", "migration_ms", "step_ms")
    result = waste(how, gpus=gpus, overlap_ms=overlap, **dict(zip(names, times, strict=True)))
    assert all(value >= 0 for value in (*result.terms.values(), *result.counterfactual_terms.values()))
    assert result.actual == sum(result.terms.values())
    assert result.actual + result.saved == result.counterfactual
    assert result.potential == 0 or how == "preventive_move"


@given(
    gpus=st.integers(1, 5000),
    checkpoint=st.integers(0, 10**8),
    detection=st.integers(0, 10**7),
    rest=st.integers(0, 10**7),
    step=st.integers(0, 10**7),
)
def test_measured_waste_never_exceeds_the_time_since_the_checkpoint(
    gpus: int, checkpoint: int, detection: int, rest: int, step: int
) -> None:
    limit = gpus * (checkpoint + detection + rest)
    restart = waste(
        "restarted", gpus=gpus, recompute_ms=checkpoint, detection_ms=detection, queue_ms=0, restart_ms=rest
    )
    moved = waste(
        "migrated", gpus=gpus, detection_ms=detection, migration_ms=rest, step_ms=step, redo_limit_ms=checkpoint
    )
    assert restart.actual <= limit
    assert moved.actual <= limit
