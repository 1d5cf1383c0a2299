"""Pure FSDP: each shard exists once, and a copy of it with the next rank; the copy must be exact at every moment."""

import json
from pathlib import Path

import pytest

from agent.planner import Sharding, StateLost, Survivor, make_plan
from tests.agent.launch import SCRIPTS, Outcome, train
from tests.agent.sharded import PATIENT, assert_exact, kills, strategies_reported, train_sharded

STEPS = 14
POINTS = ["in_allgather/1", "in_reduce_scatter/1", "copy", "exchange", "doubt", "apply"]
ALL_POINTS = [
    *POINTS,
    *("draw", "step", "forward", "allgather", "allgather/2", "in_allgather/2", "reduce_scatter", "in_reduce_scatter"),
    *("gate", "applied", "boundary"),
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    run = train_sharded(tmp_path_factory.mktemp("undisturbed"), 1, workers=3, spares=0, steps=STEPS)
    assert run.status == 0, run.output
    return run


@pytest.mark.timeout(400)
def test_every_rank_dies_around_the_exchange_of_gradients(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = kills(POINTS, [0, 1, 2])
    run = train_sharded(tmp_path, 1, faults=faults, workers=3, spares=len(POINTS), steps=STEPS, timeout=300)
    assert_exact(run, undisturbed, "redundant_shard", len(POINTS))
    assert [report["where"]["rank"] for report in run.resolved()] == [0, 1, 2, 0, 1, 2]
    assert strategies_reported(tmp_path) == {"fsdp/1"}


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("point", ALL_POINTS)
def test_all_ranks_at_one_point(undisturbed: Outcome, tmp_path: Path, point: str) -> None:
    faults = kills([point] * 3, [2, 0, 1], every=4)
    run = train_sharded(tmp_path, 1, faults=faults, workers=3, spares=3, steps=STEPS, timeout=300)
    assert_exact(run, undisturbed, "redundant_shard", 3)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("delay", [0.2, 0.5, 1, 2])
def test_death_while_gradients_travel_or_the_optimizer_runs(undisturbed: Outcome, tmp_path: Path, delay: float) -> None:
    points = [("copy", 0, 3), ("inside", 1, 7), ("applied", 2, 11)]
    faults = ";".join(f"kill:rank={rank},step={step},point={at},delay_ms={delay}" for at, rank, step in points)
    run = train_sharded(tmp_path, 1, faults=faults, workers=3, spares=3, steps=STEPS, timeout=300)
    assert_exact(run, undisturbed, "redundant_shard", 3)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_ranks_that_are_no_neighbours_die_at_once(tmp_path: Path) -> None:
    reference = train_sharded(tmp_path / "undisturbed", 1, workers=4, spares=0, steps=8)
    faults = "kill:rank=0,step=5,point=copy;kill:rank=2,step=5,point=copy"
    run = train_sharded(tmp_path / "disturbed", 1, faults=faults, workers=4, spares=2, steps=8, timeout=300)
    assert_exact(run, reference, "redundant_shard", 2)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_another_rank_dies_while_the_members_connect_for_a_spare(tmp_path: Path) -> None:
    undisturbed = train_sharded(tmp_path / "undisturbed", 1, workers=4, spares=0, steps=8)
    faults = "kill:rank=0,step=5,point=copy;kill:rank=2,step=5,point=form"
    run = train_sharded(tmp_path / "disturbed", 1, faults=faults, workers=4, spares=2, steps=8, timeout=300)
    assert_exact(run, undisturbed, "redundant_shard", 2)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_only_source_of_a_shard_dies_while_it_sends_and_the_run_says_so(tmp_path: Path) -> None:
    faults = "kill:rank=0,step=5,point=copy;kill:point=serve"
    run = train_sharded(tmp_path, 1, faults=faults, workers=3, spares=2, steps=STEPS, timeout=300)
    assert run.status != 0
    assert "part of the state is gone" in run.output


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_neighbours_die_at_once_and_the_run_says_so(tmp_path: Path) -> None:
    faults = "kill:rank=0,step=5,point=exchange;kill:rank=1,step=5,point=exchange"
    run = train_sharded(tmp_path, 1, faults=faults, workers=3, spares=2, steps=STEPS, timeout=300)
    assert run.status != 0
    assert "every worker that held rank 0's part of the state is gone" in run.output
    assert run.resolved()[-1]["resolution"] == "abandoned"


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("communicating", "the optimizer communicates in step()"),
        ("counting", "the copy of rank 1's shard on rank 0 has parted from it"),
    ],
)
def test_an_optimizer_that_a_copy_cannot_follow_is_refused(tmp_path: Path, kind: str, complaint: str) -> None:
    script = SCRIPTS / "odd_optimizer.py"
    outcome = train(tmp_path, script=script, workers=2, spares=0, steps=6, arguments=("--kind", kind), options=PATIENT)
    assert outcome.status != 0
    assert complaint in outcome.output


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_the_copy_costs(tmp_path: Path) -> None:
    """One gradient shard per step on the wire and one shard with optimizer state in memory, as documented."""
    out = tmp_path / "cost.json"
    outcome = train(
        tmp_path / "run", script=SCRIPTS / "fsdp_cost.py", workers=2, spares=0, steps=6,
        arguments=("--width", "128", "--cost", str(out)), options=PATIENT,
    )  # fmt: skip
    assert outcome.status == 0, outcome.output
    cost = json.loads(out.read_text())
    assert cost["sent_bytes"] == pytest.approx(cost["shard_bytes"], rel=0.01)
    assert cost["copy_bytes"] == pytest.approx(3 * cost["shard_bytes"], rel=0.01)  # parameters and Adam's two moments
    assert cost["buffer_bytes"] == pytest.approx(2 * cost["shard_bytes"], rel=0.01)


def test_the_plan_asks_the_copy_keeper_and_refills_both_places() -> None:
    sharding = Sharding((0, 1, 2, 3), copied=True)
    survivors = [Survivor(f"w{rank}", rank, 7, False) for rank in (0, 2, 3)]
    plan = make_plan(survivors, ["s0"], 4, sharding=sharding)
    assert plan.targets == {"s0": 1}
    assert plan.holders == {"s0": (("w2", "copy"),)}
    assert plan.copies["s0"] == (("w0", "own"),)


def test_a_keeper_in_doubt_still_counts() -> None:
    """It holds the gradients of the step in doubt, so its copy will be at the plan's version."""
    sharding = Sharding((0, 1, 2), copied=True)
    survivors = [Survivor("w1", 1, 6, True), Survivor("w2", 2, 7, False)]
    plan = make_plan(survivors, ["s0"], 3, sharding=sharding)
    assert plan.version == 7
    assert plan.sources == ("w2",)
    assert plan.holders == {"s0": (("w1", "copy"),)}


def test_a_shard_without_keeper_is_lost() -> None:
    sharding = Sharding((0, 1, 2), copied=True)
    with pytest.raises(StateLost, match="rank 1's part"):
        make_plan([Survivor("w0", 0, 7, False)], ["s0", "s1"], 3, sharding=sharding)


def test_replica_groups_need_no_copy() -> None:
    sharding = Sharding((0, 1, 0, 1))
    plan = make_plan([Survivor(f"w{rank}", rank, 7, False) for rank in (0, 2, 3)], ["s0"], 4, sharding=sharding)
    assert plan.holders == {"s0": (("w3", "own"),)}
    assert plan.copies == {}
    with pytest.raises(StateLost, match="rank 1's part"):
        make_plan([Survivor(f"w{rank}", rank, 7, False) for rank in (0, 2)], ["s0", "s1"], 4, sharding=sharding)


def test_a_keeper_that_has_not_received_its_copy_yet_does_not_count() -> None:
    sharding = Sharding((0, 1, 2), copied=True)
    survivors = [Survivor("w0", 0, 0, False, has_copy=False), Survivor("w1", 1, 0, False, has_copy=False)]
    with pytest.raises(StateLost, match="rank 2's part"):
        make_plan(survivors, ["s0"], 3, sharding=sharding)
