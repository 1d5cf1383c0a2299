"""No spare is free: wait, go on with fewer workers, or stop with the state kept; and how the pool is filled again."""

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from agent import control
from tests.agent.hosts import Hosts
from tests.agent.launch import EXAMPLE, Outcome, assert_lossless, train
from tests.agent.sharded import SHARDED

STEPS = 14

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    outcome = train(tmp_path_factory.mktemp("undisturbed"), steps=STEPS, spares=0)
    assert outcome.status == 0, outcome.output
    return outcome


def losses(outcome: Outcome) -> list[list[float]]:
    assert outcome.result is not None, outcome.output
    return outcome.result["losses"]


def assert_shrunk(report: dict, step: int) -> None:
    assert report["resolution"] == "abandoned"
    assert report["attempts"][-1]["outcome"] == "continued smaller"
    assert report["attempts"][-1]["reason"] == "no spare was free: 2 of 3 workers go on"
    assert report["progress"]["last_committed_step"] == step
    assert (report["spare"], report["state"]) == (None, None)


@pytest.mark.parametrize("rank", [1, 0])
def test_a_run_goes_on_with_fewer_workers(undisturbed: Outcome, tmp_path: Path, rank: int) -> None:
    """From the same state: up to the loss all is as ever, and the first step after it begins alike on those that stay.

    It is one and the same smaller run wherever in the step the worker was lost. When rank 0 is lost, the highest rank
    takes its place, because scripts save there.
    """
    runs = []
    for point in ("forward", "reduce"):
        faults = f"kill:rank={rank},step=7,point={point}"
        outcome = train(tmp_path / point, faults=faults, spares=0, steps=STEPS, options=("--without-spare", "shrink"))
        assert outcome.status == 0, outcome.output
        (report,) = outcome.resolved()
        assert_shrunk(report, 6)
        runs.append(outcome)
    assert repr(runs[0].result) == repr(runs[1].result)
    before, after = losses(undisturbed), losses(runs[0])
    assert len(after) == STEPS
    assert after[:6] == before[:6]
    vacant, staying = (1, (0, 2)) if rank else (2, (0, 1))
    assert [after[6][each] for each in staying] == [before[6][each] for each in staying]
    for row in after[6:]:
        assert [math.isnan(value) for value in row] == [each == vacant for each in range(3)]
    assert "2 of 3 workers train, until a spare comes" in runs[0].output


def test_a_smaller_run_grows_back_when_a_spare_joins(tmp_path: Path) -> None:
    with Hosts(tmp_path, workers=3, steps=150, options=("--without-spare", "shrink")) as run:
        run.wait_for_step(3)
        victim = run.hosts[0].workers()[1]
        os.kill(victim, signal.SIGKILL)
        run.wait_until("2 of 3 workers train")
        run.join("later", 1)
        outcome = run.finish()
    assert outcome.status == 0, run.output
    (report,) = outcome.resolved()
    assert report["resolution"] == "abandoned"
    rows = losses(outcome)
    alone = [number for number, row in enumerate(rows) if math.isnan(row[1])]
    assert alone == list(range(alone[0], alone[-1] + 1)), "it was away once"
    assert 3 <= alone[0] < alone[-1] < len(rows) - 1
    assert all(math.isfinite(row[0] + row[2]) for row in rows)


def test_a_spare_that_cannot_take_a_rank_does_not_end_a_smaller_run(tmp_path: Path) -> None:
    with Hosts(tmp_path, workers=3, steps=150, options=("--without-spare", "shrink")) as run:
        run.wait_for_step(3)
        os.kill(run.hosts[0].workers()[1], signal.SIGKILL)
        run.wait_until("2 of 3 workers train")
        faults = ";".join(["raise:who=spare,point=form"] * 4)
        run.join("later", 1, variables={"YOCO_FAULTS": faults})
        run.wait_until("as a spare it failed 2 times to take a rank")
        outcome = run.finish()
    assert outcome.status == 0, run.output
    assert math.isnan(losses(outcome)[-1][1])


@pytest.mark.parametrize("script", [EXAMPLE, SHARDED])
def test_a_run_stops_with_its_state_kept_and_another_goes_on_exactly(tmp_path: Path, script: Path) -> None:
    what: Any = {"script": script, "arguments": ("--replicas", "1") if script == SHARDED else ()}
    reference = train(tmp_path / "reference", steps=STEPS, spares=0, **what)
    faults = "kill:rank=1,step=7,point=inside"
    options = ("--without-spare", "stop")
    first = train(tmp_path / "first", faults=faults, spares=0, steps=STEPS, options=options, **what)
    folder = tmp_path / "first" / "state" / "kept"
    assert first.status == 1, first.output
    assert f"and no spare is free (--without-spare stop); the state after step 7 is kept in {folder}" in first.output
    (report,) = first.resolved()
    assert report["resolution"] == "abandoned"
    assert str(folder) in report["attempts"][-1]["reason"]
    # The next run has a spare and loses a worker itself.
    again = ("--resume", str(folder))
    faults = "kill:rank=0,step=10,point=forward"
    second = train(tmp_path / "second", faults=faults, spares=1, steps=STEPS, options=again, **what)
    assert second.status == 0, second.output
    assert second.parts == reference.parts
    assert_lossless(second.resolved()[0])


def test_a_damaged_state_is_not_used(tmp_path: Path) -> None:
    options = ("--without-spare", "stop")
    faults = "kill:rank=1,step=4,point=forward"
    first = train(tmp_path / "first", faults=faults, workers=2, spares=0, steps=STEPS, options=options)
    folder = tmp_path / "first" / "state" / "kept"
    part = folder / "part-0"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    options = ("--resume", str(folder))
    second = train(tmp_path / "second", workers=2, spares=0, steps=STEPS, options=options)
    assert (first.status, second.status) == (1, 1), second.output
    assert f"{part} is damaged; it cannot be used" in second.output
    third = train(tmp_path / "third", workers=3, spares=0, steps=STEPS, options=options)
    assert third.status == 2
    assert "is the state of 2 workers; start as many" in third.output
    (folder / "meta.json").write_text(json.dumps({}))
    assert "holds no kept state" in train(tmp_path / "fourth", workers=2, options=options).output


def test_the_pool_is_filled_again(tmp_path: Path) -> None:
    """Two losses with one spare and two new processes; the second new one is not needed."""
    with Hosts(tmp_path, workers=2, spares=1, steps=150, options=("--respawn", "2")) as run:
        run.wait_for_step(1)
        for number in range(2):
            status = control.ask(run.state, {"type": "status"})
            os.kill(status["ranks"][str(number)]["pid"], signal.SIGKILL)
            run.wait_until(f"agent: epoch {number + 2}: training resumes")
            run.wait_until(f"{1 - number} more may follow")
            run.wait_for_step(status["committed"] + 2)
        outcome = run.finish()
    assert outcome.status == 0, run.output
    assert [report["resolution"] for report in outcome.resolved()] == ["live_migration"] * 2
    for report in outcome.resolved():
        assert_lossless(report)
