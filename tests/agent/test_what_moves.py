"""Everything that a script may hold, moved: workers die at all points of a step, and nothing comes out differently."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from tests.agent.launch import SCRIPTS, Outcome, train
from tests.agent.sharded import PATIENT, assert_exact, kills

STEPS = 18
POINTS = [
    # In the first step, between micro-batches, at the gate and around it, while optimizers run, between steps.
    *("step/1", "forward", "step/2", "gate", "exchange", "doubt", "apply", "applied", "boundary"),
]
ALL = ("optimizers", "scaler", "micro-batches", "generators", "norm")


@dataclass(frozen=True)
class Case:
    name: str
    features: tuple[str, ...]
    workers: int = 3
    replicas: int = 0
    source: str = "replica"
    points: tuple[str, ...] = tuple(POINTS)

    def train(self, folder: Path, *, faults: str = "", spares: int = 0, options: tuple[str, ...] = ()) -> Outcome:
        arguments = ("--replicas", str(self.replicas), "--with", *self.features)
        return train(
            folder,
            faults=faults,
            workers=self.workers,
            spares=spares,
            steps=STEPS,
            script=SCRIPTS / "rich.py",
            arguments=arguments,
            options=(*PATIENT, *options),
            timeout=200,
        )


CASES = [
    Case("ddp", (*ALL, "loader", "average")),
    Case("ddp-plain", ("plain-loader", "micro-batches")),
    Case("ddp-loader-workers", ("workers",), points=("step", "gate", "applied")),
    Case("hsdp", (*ALL, "loader"), workers=4, replicas=2),
    Case("fsdp", (*ALL, "loader"), replicas=1, source="redundant_shard", points=(*POINTS, "copy")),
]

QUICK = ("ddp", "fsdp")  # between them they hold every feature


@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[] if case.name in QUICK else pytest.mark.slow) for case in CASES],
)
def test_it_moves_exactly_from_every_point_of_a_step(case: Case, tmp_path: Path) -> None:
    reference = case.train(tmp_path / "undisturbed")
    assert reference.status == 0, reference.output
    assert reference.result is not None
    if "scaler" in case.features:
        scales = [row[0] for row in reference.result["scale"]]
        changes = [after - before for before, after in pairwise(scales)]
        assert min(changes) < 0 < max(changes), "the scale must fall and rise for this to prove anything"
    points = [point for point in case.points if "micro-batches" in case.features or "/" not in point]
    faults = kills(points, list(range(case.workers)), every=STEPS // len(points))
    outcome = case.train(tmp_path / "disturbed", faults=faults, spares=len(points))
    assert_exact(outcome, reference, case.source, len(points))
