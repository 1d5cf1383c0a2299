"""The four conditions: what meets each, and that whatever is missing or contrary means not resolved."""

from typing import Any

import pytest

from tests.guarantee.facts import at, evidence, facts, failed, placed, restart, year
from yoco.guarantee.evidence import conditions
from yoco.guarantee.rules import place


def test_every_incident_carries_its_four_conditions() -> None:
    placing = place(facts(at(1)), year=year())
    assert [(c.name, c.met, c.reason) for c in placing.conditions] == [
        ("live_migration", True, "ok_live_source"),
        ("no_lost_progress", True, "ok_next_step"),
        ("no_rollback", True, "ok_no_checkpoint"),
        ("no_recompute", True, "ok_same_samples"),
    ]
    assert placing.conditions[3].facts["samples_expected"] == 1201 * 64


LACKING: list[tuple[dict[str, Any], str, str, str]] = [
    ({"state_source": ""}, "live_migration", "source_missing", "no_live_migration"),
    ({"state_source": "storage"}, "live_migration", "source_not_live", "no_live_migration"),
    ({"state_bytes": None}, "live_migration", "no_bytes_moved", "no_live_migration"),
    ({"state_bytes": 0}, "live_migration", "no_bytes_moved", "no_live_migration"),
    ({"digest_sent": ""}, "live_migration", "digest_missing", "no_live_migration"),
    ({"digest_received": ""}, "live_migration", "digest_missing", "no_live_migration"),
    ({"digest_algorithm": ""}, "live_migration", "digest_missing", "no_live_migration"),
    ({"digest_received": "00" * 16}, "live_migration", "digest_differs", "no_live_migration"),
    *(
        ({name: None}, "live_migration", "phases_missing", "no_live_migration")
        for name in (
            "detected_at",
            "quiesced_at",
            "spare_ready_at",
            "state_moved_at",
            "state_verified_at",
            "resumed_at",
        )
    ),
    ({"state_verified_at": at(1)}, "live_migration", "phases_out_of_order", "no_live_migration"),
    ({"detected_at": at(0)}, "live_migration", "phases_out_of_order", "no_live_migration"),
    ({"spare_ready_at": at(2)}, "live_migration", "phases_out_of_order", "no_live_migration"),
    ({"resolution": "checkpoint_restart"}, "live_migration", "reported_checkpoint_restart", "no_live_migration"),
    ({"resolution": "abandoned"}, "live_migration", "reported_abandoned", "no_live_migration"),
    ({"last_committed_step": None}, "no_lost_progress", "steps_missing", "lost_progress"),
    ({"first_step_after": None}, "no_lost_progress", "steps_missing", "lost_progress"),
    ({"first_step_after": 1200}, "no_lost_progress", "steps_lost", "lost_progress"),
    ({"first_step_after": 1202}, "no_lost_progress", "steps_skipped", "lost_progress"),
    ({"checkpoint_loaded": None}, "no_rollback", "checkpoint_unknown", "rolled_back"),
    ({"checkpoint_loaded": True}, "no_rollback", "checkpoint_loaded", "rolled_back"),
    ({"samples_before": None}, "no_recompute", "samples_missing", "recomputed"),
    ({"samples_after": None}, "no_recompute", "samples_missing", "recomputed"),
    ({"samples_per_step": None}, "no_recompute", "samples_missing", "recomputed"),
    ({"samples_after": 1202 * 64}, "no_recompute", "samples_differ", "recomputed"),
    ({"samples_after": 1200 * 64}, "no_recompute", "samples_differ", "recomputed"),
]


@pytest.mark.parametrize(("lack", "condition", "reason", "rule"), LACKING)
def test_missing_or_contrary_evidence_means_not_resolved(
    lack: dict[str, Any], condition: str, reason: str, rule: str
) -> None:
    one = facts(at(1), **lack)
    reasons = {c.name: c.reason for c in conditions(one)}
    assert reasons[condition] == reason
    assert placed(one) == ("not_resolved", rule)


LAST_STEP: dict[str, Any] = {
    "first_step_after": None,
    "samples_after": 1200 * 64,
    "samples_per_step": 0,
    "run_ended_at": at(1.1),
    "run_ended_step": 1200,
}


def test_a_failure_after_the_last_step_lost_nothing_if_the_run_ended_there() -> None:
    one = facts(at(1), **LAST_STEP)
    assert placed(one) == ("resolved", "run_complete")
    assert [c.reason for c in conditions(one)][1:] == ["ok_run_complete", "ok_no_checkpoint", "ok_same_samples"]


@pytest.mark.parametrize(
    ("lack", "rule"),
    [
        ({"run_ended_at": None, "run_ended_step": None}, "lost_progress"),
        ({"run_ended_step": None}, "lost_progress"),
        ({"run_ended_step": 1199}, "lost_progress"),
        ({"run_ended_step": 1201}, "lost_progress"),
        ({"run_ended_at": at(1)}, "lost_progress"),
        ({"first_step_after": 1200}, "lost_progress"),
        ({"last_committed_step": None}, "lost_progress"),
        ({"resumed_at": None}, "no_live_migration"),
        ({"state_verified_at": None}, "no_live_migration"),
        ({"digest_received": "cd" * 16}, "no_live_migration"),
        ({"resolution": "abandoned"}, "no_live_migration"),
        ({"checkpoint_loaded": True}, "rolled_back"),
        ({"checkpoint_loaded": None}, "rolled_back"),
        ({"samples_after": None}, "recomputed"),
        ({"samples_before": None, "samples_after": None}, "recomputed"),
        ({"samples_after": 1201 * 64}, "recomputed"),
    ],
)
def test_without_that_evidence_the_last_step_is_not_resolved(lack: dict[str, Any], rule: str) -> None:
    assert placed(facts(at(1), **{**LAST_STEP, **lack})) == ("not_resolved", rule)


def test_flags_do_not_decide() -> None:
    """A report that claims everything and proves nothing, and one that claims nothing and proves everything."""
    claims = failed(at(1), resolution="live_migration", checkpoint_loaded=False, state_source="replica")
    assert placed(claims)[0] == "not_resolved"
    assert placed(facts(at(1), resolution=""))[0] == "resolved"


@pytest.mark.parametrize("source", ["replica", "leaving_worker", "redundant_shard"])
def test_each_live_source_counts(source: str) -> None:
    assert placed(facts(at(1), state_source=source))[0] == "resolved"


def test_several_steps_may_pass_between_the_two_positions_told() -> None:
    """Samples are compared with those of an uninterrupted run from the last committed step to the first after."""
    one = facts(at(1), **{**evidence(at(1), step=0), "samples_before": 0, "samples_after": 64})
    assert placed(one)[0] == "resolved"


def test_a_restart_without_a_checkpoint_flag_is_not_resolved_either() -> None:
    one = failed(at(1), **{**restart(at(1)), "checkpoint_loaded": False, "resolution": ""})
    assert placed(one)[0] == "not_resolved"
