"""Frozen and hung workers, broken connections, damaged data, and a coordinator that dies at every point."""

from pathlib import Path

import pytest

from tests.agent.launch import Outcome, assert_lossless, train

STEPS = 20
COORDINATOR_POINTS = ["fence", "quiesce", "plan", "planned", "sent", "all-ready", "resume"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    outcome = train(tmp_path_factory.mktemp("undisturbed"), steps=STEPS, spares=0)
    assert outcome.status == 0, outcome.output
    return outcome


def assert_exact(outcome: Outcome, reference: Outcome) -> None:
    assert outcome.status == 0, outcome.output
    assert outcome.parts == reference.parts, outcome.output


def test_a_frozen_worker_and_broken_connections(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = "stop:rank=2,step=5,point=forward;break:rank=0,step=12,point=forward"
    outcome = train(tmp_path, faults=faults, spares=1, steps=STEPS)
    assert_exact(outcome, undisturbed)
    frozen, broken = outcome.resolved()
    assert_lossless(frozen)
    assert frozen["trigger"]["signal"] == "hang"
    assert frozen["trigger"]["detail"]["how"] == "killed by SIGKILL"
    assert broken["trigger"]["signal"] == "link"
    assert broken["resolution"] == "path_failover"
    assert broken["where"]["rank"] is None
    assert broken["progress"]["first_step_after"] == broken["progress"]["last_committed_step"] + 1


@pytest.mark.parametrize("point", ["forward", "reduce"])
def test_a_worker_that_hangs_is_told_from_those_that_wait(undisturbed: Outcome, tmp_path: Path, point: str) -> None:
    """In user code, and in a collective that it never completes."""
    faults = f"hang:rank=1,step=6,point={point}"
    outcome = train(tmp_path, faults=faults, spares=1, steps=STEPS, options=("--hang-limit", "4"))
    assert_exact(outcome, undisturbed)
    (report,) = outcome.resolved()
    assert_lossless(report)
    assert report["where"]["rank"] == 1
    assert report["trigger"]["signal"] == "hang"


def test_a_damaged_segment_is_sent_again(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = "kill:rank=1,step=6,point=forward;mark:point=corrupt"
    outcome = train(tmp_path, faults=faults, spares=1, steps=STEPS)
    assert_exact(outcome, undisturbed)
    (report,) = outcome.resolved()
    assert_lossless(report)
    assert (tmp_path / "state" / "fault-1").exists()


def test_the_coordinator_dies_while_nothing_happens(undisturbed: Outcome, tmp_path: Path) -> None:
    """Training goes on without it, and the next one deals with a later loss."""
    faults = "kill:who=coordinator,step=4,point=committed;kill:rank=1,step=15,point=backward"
    outcome = train(tmp_path, faults=faults, spares=1, steps=STEPS)
    assert_exact(outcome, undisturbed)
    assert "a new coordinator takes over in epoch 1" in outcome.output
    (report,) = outcome.resolved()
    assert_lossless(report)


def test_the_coordinator_dies_at_every_point_of_a_recovery_in_one_run(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [f"kill:who=coordinator,step=8,point={point}" for point in COORDINATOR_POINTS]
    faults.append("kill:rank=1,step=8,point=backward")
    outcome = train(tmp_path, faults=";".join(faults), spares=1, steps=STEPS)
    assert_exact(outcome, undisturbed)
    assert outcome.output.count("a new coordinator takes over") == len(COORDINATOR_POINTS)
    # How the worker ended may become known, and be amended, in between.
    events = [report["event"] for report in outcome.reports if report["event"] != "amended"]
    assert events == ["detected", "resolved"]
    assert len({report["incident_id"] for report in outcome.reports}) == 1
    assert_lossless(outcome.resolved()[0])


def test_the_coordinator_dies_before_the_first_plan(undisturbed: Outcome, tmp_path: Path) -> None:
    """Again and again: nobody holds a rank yet, so the run begins as if for the first time."""
    points = COORDINATOR_POINTS[: COORDINATOR_POINTS.index("planned")]
    faults = [f"kill:who=coordinator,step=1,point={point}" for point in points]
    faults.append("kill:rank=2,step=1,point=step")
    outcome = train(tmp_path, faults=";".join(faults), spares=1, steps=STEPS)
    assert_exact(outcome, undisturbed)
    assert outcome.output.count("a new coordinator takes over") == len(points)
    (report,) = outcome.resolved()
    assert_lossless(report)


def test_the_coordinator_fails_by_itself(undisturbed: Outcome, tmp_path: Path) -> None:
    """An error of its own is not the run's end: the launchers go on watching, and meet the next coordinator."""
    faults = "kill:rank=1,step=6,point=backward;raise:who=coordinator,step=6,point=plan;kill:rank=2,step=12,point=gate"
    outcome = train(tmp_path, faults=faults, spares=2, steps=STEPS)
    assert_exact(outcome, undisturbed)
    assert "the coordinator died (status 1); starting another" in outcome.output
    first, second = outcome.resolved()
    assert_lossless(first)
    assert_lossless(second)
    assert second["trigger"]["detail"]["detector"] == "proc_stat"


def test_members_that_can_never_connect_stop_the_run(tmp_path: Path) -> None:
    """Their connections break in each attempt, although nobody is lost and the coordinator hears all."""
    faults = ";".join(["break:rank=0,step=6,point=forward"] * 12)
    outcome = train(tmp_path, faults=faults, spares=0, steps=STEPS)
    assert outcome.status == 1
    assert "check the network between the hosts" in outcome.output


def test_the_coordinator_dies_just_after_training_resumed(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = "kill:rank=2,step=8,point=gate;kill:who=coordinator,step=8,point=resumed"
    outcome = train(tmp_path, faults=faults, spares=1, steps=STEPS)
    assert_exact(outcome, undisturbed)
    assert_lossless(outcome.resolved()[0])


def test_a_worker_dies_while_there_is_no_coordinator(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = "kill:who=coordinator,step=8,point=committed;kill:rank=0,step=9,point=backward"
    outcome = train(tmp_path, faults=faults, spares=1, steps=STEPS)
    assert_exact(outcome, undisturbed)
    assert_lossless(outcome.resolved()[0])


def test_a_frozen_coordinator_is_replaced(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = "stop:who=coordinator,step=4,point=committed;kill:rank=1,step=12,point=backward"
    outcome = train(tmp_path, faults=faults, spares=1, steps=STEPS, options=("--heartbeat-limit", "3"))
    assert_exact(outcome, undisturbed)
    assert "the coordinator died (status -9); starting another" in outcome.output
    assert_lossless(outcome.resolved()[0])


def test_a_promoted_spare_dies_before_it_commits_a_step(undisturbed: Outcome, tmp_path: Path) -> None:
    """Still one incident: the evidence is that of the spare with which training went on."""
    faults = "kill:rank=1,step=8,point=backward;kill:who=spare,rank=1,step=8,point=backward"
    outcome = train(tmp_path, faults=faults, spares=2, steps=STEPS)
    assert_exact(outcome, undisturbed)
    (report,) = outcome.resolved()
    assert_lossless(report)
    assert [attempt["outcome"] for attempt in report["attempts"]] == ["failed", "resumed"]


def test_a_promoted_spare_dies_before_it_has_met_the_next_coordinator(undisturbed: Outcome, tmp_path: Path) -> None:
    """The log says which rank it held."""
    faults = "kill:rank=1,step=8,point=backward;kill:who=coordinator,step=8,point=resumed"
    outcome = train(tmp_path, faults=f"{faults};kill:who=spare,rank=1,step=10,point=exchange", spares=2, steps=STEPS)
    assert_exact(outcome, undisturbed)
    assert "rank 1 (" in outcome.output.partition("a new coordinator takes over")[2]
    for report in outcome.resolved():
        assert_lossless(report)


def test_connections_break_while_there_is_no_coordinator(undisturbed: Outcome, tmp_path: Path) -> None:
    """Who saw it tells the next one."""
    faults = "kill:who=coordinator,step=4,point=committed;break:rank=2,step=6,point=forward"
    outcome = train(tmp_path, faults=faults, spares=0, steps=STEPS)
    assert_exact(outcome, undisturbed)
    assert [report["resolution"] for report in outcome.resolved()] == ["path_failover"]
