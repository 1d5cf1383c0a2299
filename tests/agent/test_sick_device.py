"""A device that computes wrong numbers or raises is left for another one; a script's own numerics move nobody."""

from pathlib import Path
from typing import Any

import pytest

from agent.numerics import COPY, GRADIENT, LOSS, PARAMETERS, all_finite, sick_ranks
from tests.agent.launch import SCRIPTS, Outcome, assert_lossless, train

torch = pytest.importorskip("torch")
STEPS = 10
SETTINGS: dict[int, dict[str, Any]] = {0: {"workers": 3}, 1: {"workers": 3}, 2: {"workers": 4}}
"""By number of replica groups; 0 is DDP."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Outcome]:
    found = {replicas: numbers(tmp_path_factory.mktemp("undisturbed"), replicas, spares=0) for replicas in SETTINGS}
    for outcome in found.values():
        assert outcome.status == 0, outcome.output
    return found


def numbers(folder: Path, replicas: int, *arguments: str, spares: int = 2, faults: str = "") -> Outcome:
    line = ("--replicas", str(replicas), *arguments)
    script = SCRIPTS / "numbers.py"
    return train(folder, script=script, steps=STEPS, arguments=line, spares=spares, faults=faults, **SETTINGS[replicas])


@pytest.mark.parametrize("replicas", SETTINGS)
@pytest.mark.parametrize("what", ["sick_gradient", "sick_parameters"])
def test_a_rank_whose_numbers_alone_are_not_finite_is_replaced(
    undisturbed: dict[int, Outcome], tmp_path: Path, what: str, replicas: int
) -> None:
    outcome = numbers(tmp_path, replicas, faults=f"mark:rank=1,step=5,point={what}")
    assert outcome.status == 0, outcome.output
    assert outcome.parts == undisturbed[replicas].parts, outcome.output
    (report,) = outcome.resolved()
    assert_lossless(report)
    assert (report["kind"], report["where"]["rank"]) == ("unplanned", 1)
    assert report["trigger"]["detail"]["detector"] == "nan_check"
    step, kind = (5, "gradients") if what == "sick_gradient" else (6, "parameters")
    assert f"{kind} of this rank alone not finite in step {step}" in report["trigger"]["detail"]["nan_check"]
    assert "nan_check_again" not in report["trigger"]["detail"]


def test_numbers_that_are_not_finite_on_all_ranks_move_nobody(tmp_path: Path) -> None:
    outcome = numbers(tmp_path, 0, "--bad-step", "4")
    assert outcome.status == 0, outcome.output
    assert outcome.reports == []
    assert "not finite in step 4: rank 0: loss, gradients; rank 1: loss, gradients; rank 2: " in outcome.output
    assert "this is the script's numerics, and nothing is moved" in outcome.output


@pytest.mark.parametrize("spares", [0, 2])
def test_a_rank_whose_data_is_bad_is_tried_once_elsewhere(tmp_path: Path, spares: int) -> None:
    """The same inputs give the same on the spare: training goes on as the script would have it. Without a spare the
    step is only done again."""
    outcome = numbers(tmp_path, 0, "--bad-step", "4", "--bad-rank", "1", spares=spares)
    assert outcome.status == 0, outcome.output
    assert "not finite in step 4: rank 1: loss, gradients; this is the script's numerics" in outcome.output
    if not spares:
        assert outcome.reports == []
        return
    (report,) = outcome.resolved()
    assert_lossless(report)
    assert report["trigger"]["detail"]["nan_check_again"] == "not finite on the spare either: the script's numerics"


def test_an_error_of_the_device_is_reported_as_one(tmp_path: Path) -> None:
    reference = train(tmp_path / "reference", steps=STEPS, spares=0)
    outcome = train(tmp_path / "run", steps=STEPS, faults="device:rank=1,step=5,point=forward")
    assert outcome.status == 0, outcome.output
    assert outcome.parts == reference.parts
    (report,) = outcome.resolved()
    assert_lossless(report)
    detail = report["trigger"]["detail"]
    assert (report["kind"], detail["detector"], detail["device_error"]) == ("unplanned", "exception", True)
    assert detail["error"].startswith("AcceleratorError: CUDA error: an illegal memory access was encountered")


def test_an_exception_of_the_script_is_no_error_of_the_device(tmp_path: Path) -> None:
    outcome = train(tmp_path, steps=STEPS, faults="raise:rank=1,step=5,point=forward")
    assert outcome.status == 0, outcome.output
    detail = outcome.resolved()[0]["trigger"]["detail"]
    assert (detail["error"], detail["device_error"]) == ("FaultInjected: scripted fault", False)


@pytest.mark.parametrize(
    ("findings", "parts", "copied", "expected"),
    [
        ([0, GRADIENT, 0], [0, 0, 0], False, [1]),
        ([LOSS, LOSS, LOSS], [0, 0, 0], False, []),
        ([0, LOSS | GRADIENT, GRADIENT], [0, 0, 0], False, []),  # most ranks: hardly their devices
        ([0, LOSS], [0, 0], False, [1]),
        ([LOSS], [0], False, []),
        # Bad parameters of one make the others' losses bad too; what differs is the replica.
        ([LOSS, LOSS | PARAMETERS, LOSS, LOSS], [0, 1, 0, 1], False, [1]),
        ([0, PARAMETERS, 0, PARAMETERS], [0, 1, 0, 1], False, []),
        ([LOSS, LOSS | PARAMETERS, LOSS], [0, 1, 2], True, [1]),
        ([LOSS, LOSS | PARAMETERS, LOSS | COPY], [0, 1, 2], True, []),
        # Without the suspects a part of the state would have no holder.
        ([LOSS, 0, LOSS, 0], [0, 1, 0, 1], False, []),
        ([LOSS, LOSS, 0, 0], [0, 1, 2, 3], True, []),
        ([LOSS, 0, LOSS, 0], [0, 1, 2, 3], True, [0, 2]),
    ],
)
def test_who_is_suspect(findings: list[int], parts: list[int], copied: bool, expected: list[int]) -> None:
    assert sick_ranks(findings, parts, copied=copied) == expected


def test_large_finite_numbers_are_finite() -> None:
    assert all_finite([torch.full((4,), 3e38)])
    assert not all_finite([torch.ones(3), torch.tensor([1.0, float("-inf")])])
    assert all_finite([torch.tensor([1, 2])])
