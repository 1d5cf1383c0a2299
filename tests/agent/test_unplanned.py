"""Workers are killed in the middle of real runs; what comes out must be what an undisturbed run gives."""

from pathlib import Path

import pytest

from tests.agent.launch import Outcome, assert_lossless, last_step_reported, train

STEPS = 24
POINTS = ["step", "forward", "backward", "reduce", "gate", "exchange", "doubt", "apply", "applied", "boundary"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    outcome = train(tmp_path_factory.mktemp("undisturbed"), steps=STEPS, spares=0)
    assert outcome.status == 0, outcome.output
    return outcome


def assert_exact(outcome: Outcome, reference: Outcome, incidents: int) -> None:
    assert outcome.status == 0, outcome.output
    assert outcome.parts == reference.parts, outcome.output
    assert len(outcome.resolved()) == incidents, outcome.output
    for report in outcome.resolved():
        assert_lossless(report)


def test_two_undisturbed_runs_are_equal_and_another_seed_is_not(undisturbed: Outcome, tmp_path: Path) -> None:
    again = train(tmp_path / "again", steps=STEPS, spares=0)
    other = train(tmp_path / "other", steps=STEPS, spares=0, arguments=("--seed", "1"))
    assert again.parts == undisturbed.parts
    assert other.result is not None
    assert undisturbed.result is not None
    for name in undisturbed.result:
        assert other.result[name] != undisturbed.result[name]


@pytest.mark.timeout(180)
def test_a_kill_at_every_point_of_a_step_in_one_run(undisturbed: Outcome, tmp_path: Path) -> None:
    """Ten workers die one after the other, each at another point, over all ranks and in the first step too."""
    faults = [f"kill:rank={index % 3},step={1 + 2 * index},point={point}" for index, point in enumerate(POINTS)]
    faults = [f"{fault},who=any" for fault in faults]
    outcome = train(tmp_path, faults=";".join(faults), spares=len(POINTS), steps=STEPS, timeout=170)
    assert_exact(outcome, undisturbed, len(POINTS))
    assert [report["event"] for report in outcome.reports] == ["detected", "resolved"] * len(POINTS)


def test_two_workers_die_at_once(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = "kill:rank=0,step=9,point=reduce;kill:rank=2,step=9,point=reduce"
    outcome = train(tmp_path, faults=faults, spares=2, steps=STEPS)
    assert_exact(outcome, undisturbed, 2)


def test_the_spare_dies_while_it_receives(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = "kill:rank=1,step=7,point=backward;kill:who=spare,point=receive"
    outcome = train(tmp_path, faults=faults, spares=2, steps=STEPS)
    assert_exact(outcome, undisturbed, 1)
    assert [attempt["outcome"] for attempt in outcome.resolved()[0]["attempts"]] == ["failed", "resumed"]


def test_the_source_dies_while_it_sends(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = "kill:rank=1,step=7,point=backward;kill:point=serve"
    outcome = train(tmp_path, faults=faults, spares=2, steps=STEPS)
    assert_exact(outcome, undisturbed, 2)


def test_the_last_step(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = f"kill:rank=1,step={STEPS},point=gate;kill:rank=2,step={STEPS},point=end"
    outcome = train(tmp_path, faults=faults, spares=2, steps=STEPS)
    assert outcome.status == 0, outcome.output
    assert outcome.parts == undisturbed.parts
    first, last = outcome.resolved()
    assert_lossless(first)
    # No step followed; that the run ended at the same step, and that the state arrived, is all there can be.
    assert (last["progress"]["last_committed_step"], last["progress"]["first_step_after"]) == (STEPS, None)
    assert last["state"]["digest_sent"] == last["state"]["digest_received"]
    assert None not in (last["phases"]["state_verified_at"], last["phases"]["resumed_at"])
    assert last_step_reported(tmp_path) == [STEPS]


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("point", [*POINTS, "inside", "draw"])
def test_a_kill_at_one_point(undisturbed: Outcome, tmp_path: Path, point: str, rank: int) -> None:
    delay = ",delay_ms=0.4" if point == "inside" else ""
    outcome = train(tmp_path, faults=f"kill:rank={rank},step=11,point={point}{delay}", steps=STEPS)
    assert_exact(outcome, undisturbed, 1)
