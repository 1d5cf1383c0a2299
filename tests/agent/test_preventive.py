"""A rank leaves a GPU that shows signs of failing, and stays on one that does not."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.launch import assert_lossless, train
from tests.agent.live import LiveRun
from tests.health.conftest import nvml_library  # noqa: F401 (a fixture)

WATCH = ("--health-poll", "0.05", "--health-policy", "ecc_window_s=1.5")

pytestmark = pytest.mark.timeout(300)


class Gpus:
    """The control file of simulated GPUs, three unless said otherwise; the third is the spare's."""

    def __init__(self, folder: Path, count: int = 3) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file, self.kernel_log = folder / "gpus", folder / "kernel.log"
        self.kernel_log.touch()
        self._values: dict[str, int] = {"gpus": count}
        for index in range(count):
            self._values |= {f"{index}.ecc_volatile_corrected": 3, f"{index}.ecc_volatile_uncorrected": 0}
        self.set()

    def set(self, **values: int) -> None:
        """`gpu1_ecc_volatile_corrected=5` and so on."""
        self._values |= {name.removeprefix("gpu").replace("_", ".", 1): value for name, value in values.items()}
        fresh = self.file.with_suffix(".new")
        fresh.write_text("".join(f"{name} {value}\n" for name, value in self._values.items()))
        fresh.rename(self.file)


def library_run(folder: Path, gpus: Gpus, library: Path, steps: int) -> LiveRun:
    """The real pynvml over a simulated libnvidia-ml.so.1."""
    variables = {"LD_LIBRARY_PATH": f"{library}:{os.environ.get('LD_LIBRARY_PATH', '')}", "NVML_SIM": str(gpus.file)}
    options = (*WATCH, "--kernel-log", str(gpus.kernel_log))
    return LiveRun(folder, steps=steps, options=options, variables=variables)


def drive(run: LiveRun, seconds: float, errors: Callable[[float], int], gpus: Gpus) -> None:
    """Let corrected errors of GPU 1 follow a function of time until a rank leaves or the time is over."""
    began = time.monotonic()
    while time.monotonic() - began < seconds and "leaves" not in run.output:
        gpus.set(gpu1_ecc_volatile_corrected=errors(time.monotonic() - began))
        time.sleep(0.02)


def test_a_rising_rate_of_corrected_errors_moves_the_rank(tmp_path: Path, nvml_library: Path) -> None:  # noqa: F811
    steps = 200
    reference = train(tmp_path / "reference", steps=steps, workers=2, spares=0)
    gpus = Gpus(tmp_path / "machine")
    with library_run(tmp_path / "run", gpus, nvml_library, steps) as run:
        run.wait_for_training()
        drive(run, 30, lambda seconds: 3 + int(120 * seconds**2), gpus)
        outcome = run.finish(240)
    assert outcome.status == 0, outcome.output
    assert outcome.parts == reference.parts
    (report,) = outcome.resolved()
    assert_lossless(report)
    assert (report["kind"], report["state"]["source"]) == ("preventive", "leaving_worker")
    assert report["where"] == {"node": report["where"]["node"], "rank": 1, "gpu_uuid": "GPU-sim-1"}
    trigger = report["trigger"]
    assert trigger["signal"] == "ecc"
    assert (trigger["detail"]["rule"], trigger["detail"]["source"]) == ("ecc_ramp", "nvml")
    first, middle, last = trigger["detail"]["readings"]["new_errors_by_third_of_window"]
    assert first <= middle <= last
    assert last >= trigger["detail"]["thresholds"]["ecc_ramp_least"]


def test_errors_at_a_steady_noisy_rate_move_nobody(tmp_path: Path, nvml_library: Path) -> None:  # noqa: F811
    gpus = Gpus(tmp_path / "machine")
    chance, total = random.Random(3), [3]

    def noise(seconds: float) -> int:
        total[0] += chance.choice([0, 0, 5, 20, 40])
        return total[0]

    with library_run(tmp_path / "run", gpus, nvml_library, 120) as run:
        run.wait_for_training()
        drive(run, 6, noise, gpus)
        outcome = run.finish(240)
    assert outcome.status == 0, outcome.output
    assert total[0] > 500, "errors were there to be seen"
    assert "No NVIDIA GPU can be watched" not in outcome.output
    assert outcome.reports == []


def test_simulated_readings_are_named_so_and_a_sick_gpu_takes_no_rank(tmp_path: Path) -> None:
    """The first spare's GPU fails, then that of rank 1: its rank goes to the second spare."""
    steps = 100
    reference = train(tmp_path / "reference", steps=steps, workers=2, spares=0)
    gpus = Gpus(tmp_path / "machine", count=4)
    options = (*WATCH, "--kernel-log", str(gpus.kernel_log), "--simulated-nvml", str(gpus.file))
    with LiveRun(tmp_path / "run", steps=steps, spares=2, options=options) as run:
        run.wait_for_training()
        time.sleep(0.5)
        gpus.set(gpu2_ecc_volatile_uncorrected=1)
        run.wait_until("its GPU is about to fail")
        gpus.set(gpu1_ecc_volatile_uncorrected=2)
        outcome = run.finish(240)
    assert outcome.status == 0, outcome.output
    assert outcome.parts == reference.parts
    (report,) = outcome.resolved()
    assert_lossless(report)
    assert (report["kind"], report["where"]["gpu_uuid"]) == ("preventive", "GPU-sim-1")
    detail = report["trigger"]["detail"]
    assert (detail["rule"], detail["source"], detail["gpu"]) == ("ecc_uncorrected", "simulated", "Simulated GPU")
    assert detail["readings"]["ecc_volatile_uncorrected"] == [0, 2]


def test_an_unknown_threshold_is_named(tmp_path: Path) -> None:
    with LiveRun(tmp_path / "run", steps=1, options=("--health-policy", "heat=3")) as run:
        outcome = run.finish()
    assert outcome.status == 2
    assert "'heat' is no threshold; there are: ecc_window_s, " in outcome.output
