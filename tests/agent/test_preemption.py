"""A run without a spare takes the place of a run of lower priority on the same host."""

import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from agent import control
from tests.agent.hosts import Hosts
from tests.agent.launch import Outcome, assert_lossless, train

STEPS = 100
LOW_STEPS = 3000

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    outcome = train(tmp_path_factory.mktemp("undisturbed"), steps=STEPS, workers=2, spares=0)
    assert outcome.status == 0, outcome.output
    return outcome


def assert_taken(outcome: Outcome, reference: Outcome, gpus: int) -> None:
    """The run of high priority lost nothing, and says whose place it took and what that cost."""
    assert outcome.status == 0, outcome.output
    assert outcome.parts == reference.parts
    (report,) = outcome.resolved()
    assert_lossless(report)
    spare = report["spare"]
    assert (spare["node"], spare["origin"]) == ("node-0", "preempted")
    assert (spare["preempted"]["run_id"], spare["preempted"]["gpus"]) == ("low", gpus)
    assert 0 < spare["preempted"]["lost_seconds"] < 60


def test_the_lower_run_goes_on_smaller(undisturbed: Outcome, tmp_path: Path) -> None:
    pool = ("--pool", str(tmp_path / "pool"))
    low_options = (*pool, "--preemptible", "--without-spare", "shrink", "--gpus", "6")
    with (
        Hosts(tmp_path / "low", workers=3, steps=LOW_STEPS, pause=0.02, options=low_options) as low,
        Hosts(tmp_path / "high", workers=2, steps=STEPS, options=(*pool, "--priority", "5")) as high,
    ):
        low.wait_for_step(3)
        high.wait_for_step(3)
        os.kill(high.hosts[0].workers()[1], signal.SIGKILL)
        outcome = high.finish()
        status = control.ask(low.state, {"type": "status"})
        assert sorted(status["ranks"]) == ["0", "1"]
        assert "rank 2 gives its place to run high" in low.output
        assert low.hosts[0].process.poll() is None, "it trains on"
        low.wait_for_step(status["committed"] + 2)
    assert_taken(outcome, undisturbed, 6)


@pytest.mark.slow
def test_the_lower_run_ends_with_its_state_kept(undisturbed: Outcome, tmp_path: Path) -> None:
    """It goes on later, exactly."""
    steps, pool = 120, ("--pool", str(tmp_path / "pool"))
    known: dict[str, Any] = {"workers": 2, "steps": steps}
    reference = train(tmp_path / "reference", spares=0, **known)
    with (
        Hosts(tmp_path / "low", pause=0.2, options=(*pool, "--preemptible"), **known) as low,
        Hosts(tmp_path / "high", workers=2, steps=STEPS, options=(*pool, "--priority", "5")) as high,
    ):
        low.wait_for_step(3)
        high.wait_for_step(3)
        os.kill(high.hosts[0].workers()[1], signal.SIGKILL)
        stopped = low.finish()
        outcome = high.finish()
    assert_taken(outcome, undisturbed, 2)
    assert stopped.status == 1
    assert "run high has a higher priority and took its place; the state after step" in low.output
    assert not list((tmp_path / "pool").glob("*.json")), "its offer is withdrawn"
    (report,) = stopped.resolved()
    assert (report["kind"], report["trigger"]["detail"]["by"]) == ("planned", "high")
    again = train(tmp_path / "again", spares=0, options=("--resume", str(low.state / "kept")), **known)
    assert again.status == 0, again.output
    assert again.parts == reference.parts
    assert all(math.isfinite(value) for row in again.result["losses"] for value in row)


def test_who_is_not_lower_or_not_preemptible_keeps_its_places(tmp_path: Path) -> None:
    pool = ("--pool", str(tmp_path / "pool"))
    equal = (*pool, "--preemptible", "--priority", "5")
    with Hosts(tmp_path / "low", workers=2, steps=400, options=equal) as low:
        low.wait_for_step(1)
        high = train(
            tmp_path / "high",
            workers=2,
            spares=0,
            steps=10,
            faults="kill:rank=1,step=3,point=forward",
            options=(*pool, "--priority", "5", "--node", "node-0", "--without-spare", "stop"),
        )
        assert high.status == 1
        assert "no spare is free" in high.output
        request = {"type": "yield", "count": 1, "nodes": ["node-0"], "by": "high", "priority": 5}
        assert control.ask(low.state, request)["type"] == "refused"
        assert control.ask(low.state, {"type": "status"})["epoch"] == 1
    usage = train(tmp_path / "usage", workers=1, options=("--preemptible",))
    assert usage.status == 2
    assert "--preemptible needs --pool DIR" in usage.output
