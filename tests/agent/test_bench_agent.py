"""The agent's benchmarks on tiny models: real runs, real kills, real drains. Their figures mean nothing here."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools.bench import agent_detect, agent_overhead, agent_planned, agent_recovery, agent_torchft
from tools.bench.agent import BENCHES
from tools.bench.agent_jobs import Model, Proof
from tools.bench.registry import CannotRun, Reading

DESIGNED = {
    "agent.recovery_vs_restart",
    "agent.torchft_gap_vs_ours",
    "agent.transfer_vs_tcp",
    "agent.planned_pause_vs_stop_and_copy",
    "agent.pause_growth",
    "agent.step_overhead_percent",
    "agent.detect_ms_p95",
}
TINY, LARGER = Model(width=64, depth=2), Model(width=256, depth=2)

pytestmark = pytest.mark.timeout(400)


def test_every_key_of_the_agent_is_registered() -> None:
    assert {goal.key for bench in BENCHES for goal in bench.goals} == DESIGNED


@pytest.mark.slow
def test_a_run_that_ends_with_other_bits_fails_the_benchmark(tmp_path: Path) -> None:
    proof = Proof(TINY)
    agent_recovery.lose_some(tmp_path / "run", Model(width=64, depth=2, batch=4), 1, proof)
    with pytest.raises(AssertionError, match="the state is not that of an undisturbed run"):
        proof.check(tmp_path / "reference")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("measure", "keys"),
    [
        (
            lambda wanted: agent_recovery.measure(wanted, rounds=1, model=TINY, curves=False),
            [agent_recovery.RECOVERY],
        ),
        (
            lambda wanted: agent_planned.measure_pauses(wanted, rounds=1, small=TINY, large=LARGER),
            [agent_planned.PAUSE, agent_planned.GROWTH],
        ),
        (
            lambda wanted: agent_planned.measure_transfer(wanted, rounds=1, model=LARGER, count=1),
            [agent_planned.TRANSFER],
        ),
        (
            lambda wanted: agent_overhead.measure(wanted, rounds=1, model=LARGER, tiny=TINY, tiny_block=20),
            [agent_overhead.OVERHEAD],
        ),
        (lambda wanted: agent_detect.measure(wanted, rounds=1, kills=2, gib=0.1), [agent_detect.DETECT]),
    ],
)
def test_a_reading_for_each_key(measure: Callable[[set[str]], Iterator[Reading]], keys: list[str]) -> None:
    readings = list(measure(set(keys)))
    assert [reading.key for reading in readings] == keys
    for reading in readings:
        assert any("bit-identical" in text and held for text, held in reading.checks)


@pytest.mark.slow
def test_torchft_drops_a_batch_and_the_agent_none() -> None:
    try:
        agent_torchft.environment()
    except CannotRun as reason:
        pytest.skip(str(reason))
    (reading,) = agent_torchft.measure(set(), rounds=1, model=TINY)
    assert reading.value > 1
    assert reading.checks[0][1]
