"""HSDP on a mesh of 2 replica groups with 2 shards: whichever coordinate dies, the run ends as if nothing had been."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from agent.planner import Sharding, Survivor, first_plan
from tests.agent.launch import Outcome
from tests.agent.sharded import assert_exact, kills, strategies_reported, train_sharded

STEPS = 16
POINTS = ["in_allgather/1", "in_reduce_scatter", "allreduce/1", "in_allreduce", "doubt", "apply"]
ALL_POINTS = [
    *POINTS,
    *("draw", "step", "forward", "allgather", "allgather/2", "in_allgather/2", "reduce_scatter", "reduce_scatter/1"),
    *("in_reduce_scatter/1", "in_allreduce/1", "gate", "exchange", "applied", "boundary"),
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    run = train_sharded(tmp_path_factory.mktemp("undisturbed"), 2, workers=4, spares=0, steps=STEPS)
    assert run.status == 0, run.output
    return run


@pytest.mark.timeout(400)
def test_replica_groups_hold_equal_parts_and_shards_differ(undisturbed: Outcome) -> None:
    first, second, third, fourth = undisturbed.parts.values()
    assert first == third
    assert second == fourth
    assert first["parameters"] != second["parameters"]
    assert first["losses"] == second["losses"]


@pytest.mark.timeout(400)
def test_every_coordinate_dies_inside_the_collectives_and_around_the_commit(
    undisturbed: Outcome, tmp_path: Path
) -> None:
    faults = kills(POINTS, [0, 1, 2, 3])
    run = train_sharded(tmp_path, 2, faults=faults, workers=4, spares=len(POINTS), steps=STEPS, timeout=300)
    assert_exact(run, undisturbed, "replica", len(POINTS))
    victims = [report["where"]["rank"] for report in run.resolved()]
    assert victims == [0, 1, 2, 3, 0, 1]
    assert strategies_reported(tmp_path) == {"hsdp/2"}


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("point", ALL_POINTS)
def test_all_coordinates_at_one_point(undisturbed: Outcome, tmp_path: Path, point: str) -> None:
    faults = kills([point] * 4, [3, 0, 2, 1], every=4)
    run = train_sharded(tmp_path, 2, faults=faults, workers=4, spares=4, steps=STEPS, timeout=300)
    assert_exact(run, undisturbed, "replica", 4)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_whole_replica_group_dies_at_once(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = "kill:rank=2,step=6,point=in_allgather;kill:rank=3,step=6,point=in_allgather"
    run = train_sharded(tmp_path, 2, faults=faults, workers=4, spares=2, steps=STEPS, timeout=300)
    assert_exact(run, undisturbed, "replica", 2)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_another_rank_dies_while_the_members_connect_for_a_spare(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = "kill:rank=1,step=6,point=in_allgather;kill:rank=2,step=6,point=form"
    run = train_sharded(tmp_path, 2, faults=faults, workers=4, spares=2, steps=STEPS, timeout=300)
    assert_exact(run, undisturbed, "replica", 2)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_only_source_of_a_shard_dies_while_it_sends_and_the_run_says_so(tmp_path: Path) -> None:
    faults = "kill:rank=1,step=6,point=in_allgather;kill:point=serve"
    run = train_sharded(tmp_path, 2, faults=faults, workers=4, spares=2, steps=STEPS, timeout=300)
    assert run.status != 0
    assert "part of the state is gone" in run.output


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_both_holders_of_a_shard_die_and_the_run_says_so(tmp_path: Path) -> None:
    faults = "kill:rank=1,step=6,point=in_reduce_scatter;kill:rank=3,step=6,point=in_reduce_scatter"
    run = train_sharded(tmp_path, 2, faults=faults, workers=4, spares=2, steps=STEPS, timeout=300)
    assert run.status != 0
    assert "every worker that held rank 1's part of the state is gone" in run.output


def test_ranks_that_were_initialised_differently_begin_with_the_first_replica_group() -> None:
    survivors = [Survivor(f"w{rank}", rank, 0, False) for rank in range(4)]
    digests = {"w0": "a", "w1": "b", "w2": "a", "w3": "other"}
    plan = first_plan(survivors, [], 4, digests, Sharding((0, 1, 0, 1)))
    assert plan.targets == {"w3": 3}
    assert plan.holders == {"w3": (("w1", "own"),)}


# The private interfaces of torch that agent.mesh and agent.sharding use: one process, no peers ---------------


def in_one_process(test: str) -> str:
    """Run `test` of tests/agent/one_process.py, which needs a process group of its own."""
    done = subprocess.run([sys.executable, "-m", "tests.agent.one_process", test], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_spare_takes_every_place_of_the_mesh_without_rebuilding_the_model() -> None:
    """Shapes, coordinates and memory after `take_shard` are those of a model sharded there from the beginning."""
    assert in_one_process("places") == "same\n" * 6


def test_groups_that_the_agent_does_not_know_are_refused() -> None:
    assert "mesh = agent.mesh(replicas=...)" in in_one_process("foreign_mesh")


def test_a_parameter_that_is_not_sharded_is_named() -> None:
    assert "head.weight is not sharded" in in_one_process("partly_sharded")


def test_torch_has_the_fields_that_are_set() -> None:
    """What `take_shard` and `RankMesh.take` rely on; if this fails after an upgrade, so would migration."""
    assert in_one_process("fields") == "all there\n"
    assert callable(fully_shard)
    assert hasattr(DTensor, "from_local")
    assert torch.__version__ >= "2.13"
