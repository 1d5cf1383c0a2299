"""Two minutes of the soak, and every seed that ever failed.

What seeds 20004, 20049, 20051 and 20086 found is in test_control.py (before the first plan) and test_launcher.py (after
the last step), where it does not depend on chance.
"""

from pathlib import Path

import pytest

from tests.agent.soak import Trial, soak, verdict

FAILED_ONCE = {
    2014: "a worker died before it had met the coordinator that took over",
    3003: "connections broke while there was no coordinator: a hang",
}


@pytest.mark.timeout(500)
def test_two_minutes_of_random_faults() -> None:
    assert soak(faults=10_000, seed=20261130, seconds=120) == []


@pytest.mark.timeout(500)
@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_seeds_that_failed_once(tmp_path: Path, seed: int) -> None:
    trial = Trial.draw(seed)
    reference = trial.strategy.train(tmp_path / "undisturbed")
    outcome = trial.run(tmp_path / "trial")
    assert verdict(trial, tmp_path / "trial", outcome, reference) is None, outcome.output
