"""Ranks are moved off live workers; what comes out must be what an undisturbed run gives."""

import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent import control
from agent.tap import ALGORITHM
from tests.agent.launch import ROOT, Outcome, assert_lossless, environment, train
from tests.agent.live import LiveRun
from tests.agent.sharded import SHARDED

STEPS = 60

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    outcome = train(tmp_path_factory.mktemp("undisturbed"), steps=STEPS, workers=2, spares=0)
    assert outcome.status == 0, outcome.output
    return outcome


def assert_exact(outcome: Outcome, reference: Outcome) -> None:
    assert outcome.status == 0, outcome.output
    assert outcome.parts == reference.parts, outcome.output


def attempts(report: dict) -> list[str]:
    return [attempt["outcome"] for attempt in report["attempts"]]


def test_ranks_move_one_after_the_other_while_training_goes_on(undisturbed: Outcome, tmp_path: Path) -> None:
    with LiveRun(tmp_path / "run", steps=STEPS, spares=2) as run:
        first = run.drain("--rank", "1")
        alive = run.children()
        second = run.drain("--rank", "0")
        outcome = run.finish()
    assert (first.returncode, second.returncode) == (0, 0), outcome.output + first.stderr + second.stderr
    assert first.stdout.splitlines()[-1] == "rank 1: done"
    assert len(alive) == 1 + 2 + 2 - 1, "the drained worker is fenced as soon as its rank has moved"
    assert_exact(outcome, undisturbed)
    assert [report["where"]["rank"] for report in outcome.resolved()] == [1, 0]
    for report in outcome.resolved():
        assert_lossless(report)
        assert (report["kind"], report["trigger"]["signal"]) == ("planned", "operator")
        assert report["trigger"]["detail"]["how"] == "agent drain"
        assert (report["state"]["source"], report["state"]["digest_algorithm"]) == ("leaving_worker", ALGORITHM)
        assert attempts(report) == ["followed", "resumed"]


def test_stop_and_copy(undisturbed: Outcome, tmp_path: Path) -> None:
    with LiveRun(tmp_path / "run", steps=STEPS) as run:
        done = run.drain("--rank", "1", "--mode", "stop-and-copy")
        outcome = run.finish()
    assert done.returncode == 0, done.stderr + outcome.output
    assert_exact(outcome, undisturbed)
    (report,) = outcome.resolved()
    assert_lossless(report)
    assert (report["kind"], report["state"]["source"]) == ("planned", "leaving_worker")
    assert report["state"]["digest_algorithm"] == "xxh3-128-tree-4MiB"
    assert attempts(report) == ["resumed"]


def test_a_worker_that_dies_half_way_becomes_an_unplanned_incident(undisturbed: Outcome, tmp_path: Path) -> None:
    with LiveRun(tmp_path / "run", steps=STEPS, faults="kill:rank=1,point=shadow_send") as run:
        done = run.drain("--rank", "1")
        outcome = run.finish()
    assert done.returncode == 1
    assert "rank 1: failed: the worker was lost before it had left" in done.stdout
    assert_exact(outcome, undisturbed)
    assert [report["event"] for report in outcome.reports] == ["detected", "amended", "resolved"]
    assert [report["kind"] for report in outcome.reports] == ["planned", "unplanned", "unplanned"]
    (report,) = outcome.resolved()
    assert_lossless(report)
    assert (report["trigger"]["signal"], report["state"]["source"]) == ("process_exit", "replica")
    assert report["trigger"]["detail"]["leaving_because"]["signal"] == "operator"


def test_the_spare_dies_while_it_follows(undisturbed: Outcome, tmp_path: Path) -> None:
    with LiveRun(tmp_path / "run", steps=STEPS, spares=2, faults="kill:who=spare,point=shadow_receive") as run:
        done = run.drain("--rank", "1")
        outcome = run.finish()
    assert done.returncode == 0, done.stderr + outcome.output
    assert_exact(outcome, undisturbed)
    (report,) = outcome.resolved()
    assert_lossless(report)
    assert report["kind"] == "planned"


@pytest.mark.slow
def test_a_spare_that_falls_behind_is_given_up(tmp_path: Path) -> None:
    """Its connection takes what it holds; then training goes on, and the move stops and copies."""
    steps = 160
    reference = train(tmp_path / "reference", steps=steps, workers=2, spares=0)
    faults = "hang:who=spare,point=shadow_receive"
    small = {"YOCO_SHADOW_QUEUE_MIB": "0.1"}
    with LiveRun(tmp_path / "run", steps=steps, spares=2, faults=faults, variables=small) as run:
        done = run.drain("--rank", "1")
        outcome = run.finish()
    assert done.returncode == 0, done.stderr + outcome.output
    assert_exact(outcome, reference)
    (report,) = outcome.resolved()
    assert_lossless(report)
    assert report["kind"] == "planned"
    assert report["attempts"][0]["outcome"] == "stop-and-copy"
    assert "fell behind by more than 0.1 MiB" in report["attempts"][0]["reason"]


def test_a_loss_takes_the_spare_and_the_drain_gives_up_in_time(undisturbed: Outcome, tmp_path: Path) -> None:
    with LiveRun(tmp_path / "run", steps=STEPS, faults="kill:rank=0,point=shadow_send,who=any") as run:
        run.wait_for_training()
        accepted = run.drain("--rank", "1", "--notice", "6", "--no-wait")
        run.signal(0, signal.SIGKILL)
        refused = run.drain("--rank", "0")
        outcome = run.finish()
    assert accepted.returncode == 0, accepted.stderr
    assert refused.returncode == 2
    assert_exact(outcome, undisturbed)
    last = {report["where"]["rank"]: report for report in outcome.resolved()}
    assert_lossless(last[0])
    assert last[0]["kind"] == "unplanned"
    assert (last[1]["kind"], last[1]["resolution"]) in (("planned", "abandoned"), ("planned", "live_migration"))


def test_the_coordinator_dies_meanwhile(undisturbed: Outcome, tmp_path: Path) -> None:
    with LiveRun(tmp_path / "run", steps=STEPS) as run:
        accepted = run.drain("--rank", "1", "--no-wait")
        run.signal(-1, signal.SIGKILL)
        outcome = run.finish()
    assert accepted.returncode == 0, accepted.stderr
    assert_exact(outcome, undisturbed)
    (report,) = outcome.resolved()
    assert_lossless(report)
    assert (report["kind"], report["state"]["source"]) == ("planned", "leaving_worker")


def test_a_drain_that_cannot_be_is_refused_with_a_sentence(undisturbed: Outcome, tmp_path: Path) -> None:
    with LiveRun(tmp_path / "run", steps=STEPS, spares=0) as run:
        nowhere = run.drain("--rank", "1")
        nobody = run.drain("--rank", "7")
        secret = stat.S_IMODE((run.state / control.FILE).stat().st_mode)
        outcome = run.finish()
    assert (nowhere.returncode, nobody.returncode) == (2, 2)
    assert "1 rank(s) have to move and there are 0 free spare(s); start with more --spares" in nowhere.stderr
    assert "no worker of this run is at rank 7" in nobody.stderr
    assert secret == 0o600
    assert_exact(outcome, undisturbed)
    assert outcome.reports == []


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "agent", "drain", "nothing", "--state-dir", str(tmp_path), "--rank", "0"]
    done = subprocess.run(line, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "control.json; on the launcher's machine, give its --state-dir" in done.stderr


def test_sigterm_with_notice_moves_a_worker(undisturbed: Outcome, tmp_path: Path) -> None:
    with LiveRun(tmp_path / "run", steps=STEPS, options=("--drain-on-sigterm", "30")) as run:
        run.wait_for_training()
        run.signal(1, signal.SIGTERM)
        outcome = run.finish()
    assert_exact(outcome, undisturbed)
    (report,) = outcome.resolved()
    assert_lossless(report)
    assert (report["kind"], report["where"]["rank"], report["state"]["source"]) == ("planned", 1, "leaving_worker")
    assert (report["trigger"]["detail"]["how"], report["trigger"]["detail"]["notice_seconds"]) == ("SIGTERM", 30.0)


def test_a_node_is_left_for_another(tmp_path: Path) -> None:
    """All ranks move to the second node, whose spares are not those of the node that is left."""
    steps = 120
    reference = train(tmp_path / "reference", steps=steps, workers=2, spares=0)
    with LiveRun(tmp_path / "run", steps=steps, spares=1, options=("--node", "old")) as run:
        deadline = time.monotonic() + 60
        while not (run.state / control.FILE).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        join = [sys.executable, "-m", "agent", "join", "--state-dir", str(run.state), "--node", "new", "--spares", "2"]
        other = subprocess.Popen(join, cwd=ROOT, env=environment())
        try:
            run.wait_for_training()
            for _ in range(100):
                done = run.drain("--node", "old")
                if "free spare(s) on other nodes" not in done.stderr:
                    break
                time.sleep(0.1)
            outcome = run.finish()
            other.wait(30)
        finally:
            other.kill()
    assert done.returncode == 0, done.stderr + outcome.output
    assert_exact(outcome, reference)
    assert sorted(report["where"]["rank"] for report in outcome.resolved()) == [0, 1]
    for report in outcome.resolved():
        assert_lossless(report)
        assert (report["kind"], report["where"]["node"], report["spare"]["node"]) == ("planned", "old", "new")


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_rank_of_a_sharded_model_moves_by_stop_and_copy(tmp_path: Path, replicas: int) -> None:
    setting = {"workers": 4, "script": SHARDED, "arguments": ("--replicas", str(replicas))}
    reference = train(tmp_path / "reference", steps=STEPS, spares=0, **setting)
    with LiveRun(tmp_path / "run", steps=STEPS, spares=1, **setting) as run:
        done = run.drain("--rank", "3")
        outcome = run.finish()
    assert done.returncode == 0, done.stderr + outcome.output
    assert_exact(outcome, reference)
    (report,) = outcome.resolved()
    assert_lossless(report)
    assert (report["kind"], report["state"]["source"]) == ("planned", "leaving_worker")
    assert "is sharded" in report["attempts"][0]["reason"]
