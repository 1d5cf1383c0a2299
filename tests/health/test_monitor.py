"""The monitor over the real pynvml, which loads a simulated libnvidia-ml.so.1."""

import math
import random
import subprocess
import sys
import time

from tests.health.conftest import ROOT

WELL = {
    "temperature": 55,
    "slowdown_temperature": 90,
    "slowdown_reasons": 0,
    "power": 400_000,
    "power_limit": 700_000,
    "ecc_volatile_corrected": 3,
    "ecc_volatile_uncorrected": 0,
    "ecc_aggregate_corrected": 120,
    "ecc_aggregate_uncorrected": 1,
    "rows_corrected": 0,
    "link__0__up": 1,
    "link__0__recovery": 0,
    "link__0__crc_flit": 10,
    "link__1__up": 1,
    "link__1__recovery": 0,
}


def well(machine):
    for gpu in (0, 1):
        machine.gpu(gpu, **WELL)
    machine.watch()


def test_a_healthy_machine_gives_no_verdict(machine):
    well(machine)
    assert machine.silent(2.0)


def test_a_rising_rate_of_corrected_errors_asks_for_a_migration(machine):
    well(machine)
    began = time.monotonic()
    while machine.verdicts.empty() and time.monotonic() - began < 20:
        # However late this process gets to run, each part of the window holds clearly more than the one before.
        machine.gpu(1, ecc_volatile_corrected=3 + int(60 * math.expm1(0.8 * (time.monotonic() - began))))
        time.sleep(0.02)
    verdict = machine.verdict(timeout_s=1.0)
    assert (verdict["gpu_uuid"], verdict["signal"], verdict["advice"]) == ("GPU-sim-1", "ecc", "migrate")
    assert (verdict["detail"]["rule"], verdict["detail"]["window_s"]) == ("ecc_ramp", 1.5)
    first, middle, last = verdict["detail"]["readings"]["new_errors_by_third_of_window"]
    assert first <= middle <= last
    assert last >= verdict["detail"]["thresholds"]["ecc_ramp_least"]


def test_an_uncorrected_error_asks_for_a_migration_with_its_evidence(machine):
    well(machine)
    time.sleep(0.3)
    machine.gpu(1, ecc_volatile_uncorrected=2)
    verdict = machine.verdict()
    assert (verdict["gpu_uuid"], verdict["signal"], verdict["advice"]) == ("GPU-sim-1", "ecc", "migrate")
    assert verdict["severity"] == "critical"
    assert verdict["detail"]["readings"]["ecc_volatile_uncorrected"] == [0, 2]
    assert verdict["detail"]["thresholds"] == {"ecc_uncorrected_new": 1}
    assert machine.silent(0.5), "once"


def test_row_remapping_pending_is_watched_and_failed_is_left(machine):
    well(machine)
    time.sleep(0.3)
    machine.gpu(0, rows_pending=1)
    pending = machine.verdict()
    machine.gpu(0, rows_failed=1)
    failed = machine.verdict()
    assert (pending["detail"]["rule"], pending["advice"]) == ("row_remap_pending", "watch")
    assert (failed["detail"]["rule"], failed["advice"]) == ("row_remap_failed", "migrate")


def test_heat_that_holds_asks_once_and_again_only_after_cooling(machine):
    well(machine)
    time.sleep(0.2)
    machine.gpu(0, temperature=92)
    verdict = machine.verdict()
    assert (verdict["signal"], verdict["advice"]) == ("thermal", "migrate")
    assert verdict["detail"]["thresholds"] == {"hot_from": 88, "cool_to": 80, "hold_s": 0.3}
    assert verdict["detail"]["readings"]["temperature"] == 92
    for temperature in (85, 92, 84, 91):
        machine.gpu(0, temperature=temperature)
        assert machine.silent(0.5), "swinging between the thresholds is the same episode"
    machine.gpu(0, temperature=60)
    assert machine.silent(0.8)
    machine.gpu(0, temperature=92)
    assert machine.verdict()["signal"] == "thermal"


def test_a_short_peak_of_heat_is_no_reason(machine):
    well(machine)
    time.sleep(0.2)
    machine.gpu(0, temperature=95)
    time.sleep(0.1)
    machine.gpu(0, temperature=70)
    assert machine.silent(1.0)


def test_slowdown_by_heat_and_by_the_power_brake_are_told_apart(machine):
    well(machine)
    machine.gpu(0, slowdown_reasons=0x40)
    assert machine.verdict()["signal"] == "thermal"
    machine.gpu(1, slowdown_reasons=0x80)
    verdict = machine.verdict()
    assert (verdict["signal"], verdict["gpu_uuid"]) == ("power", "GPU-sim-1")
    assert verdict["detail"]["readings"]["slowdown_reasons"] == ["hw_power_brake"]
    machine.gpu(0, slowdown_reasons=0x4)
    assert machine.silent(0.8), "a power cap by software is everyday life"


def test_an_xid_event_of_nvml_is_triaged_and_its_kernel_line_is_the_same_event(machine):
    well(machine)
    time.sleep(0.3)
    machine.set(xid__0="1 79")
    verdict = machine.verdict()
    assert (verdict["gpu_uuid"], verdict["signal"], verdict["xid"]) == ("GPU-sim-1", "xid", 79)
    assert (verdict["severity"], verdict["advice"]) == ("critical", "migrate")
    assert verdict["detail"]["recommended"]
    machine.log("[  12.3] NVRM: Xid (PCI:0000:3c:00): 79, pid=7, name=python, GPU has fallen off the bus.")
    assert machine.silent(1.0)
    machine.set(xid__1="0 13")
    verdict = machine.verdict()
    assert (verdict["gpu_uuid"], verdict["xid"], verdict["advice"]) == ("GPU-sim-0", 13, "watch")


def test_a_kernel_line_finds_its_gpu(machine):
    well(machine)
    machine.log("Nov 30 12:00:01 node kernel: NVRM: Xid (PCI:0000:3b:00): 95, pid=7, name=python, Uncontained")
    verdict = machine.verdict()
    assert (verdict["gpu_uuid"], verdict["xid"], verdict["advice"]) == ("GPU-sim-0", 95, "migrate")
    assert verdict["detail"]["source"] == "kernel_log"
    machine.log("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 44 sourceid timeout error")
    verdict = machine.verdict()
    assert (verdict["gpu_uuid"], verdict["signal"], verdict["advice"]) == (None, "link", "migrate")


def test_a_link_that_goes_down_and_one_that_recovers_too_often(machine):
    well(machine)
    time.sleep(0.3)
    machine.gpu(0, link__1__up=0)
    verdict = machine.verdict()
    assert (verdict["signal"], verdict["detail"]["readings"]["links_down"]) == ("link", [1])
    machine.gpu(1, link__0__recovery=2)
    assert machine.silent(0.5)
    machine.gpu(1, link__0__recovery=5)
    verdict = machine.verdict()
    assert verdict["detail"]["rule"] == "link_errors"
    assert verdict["detail"]["readings"]["new_errors_by_link"]["0"]["recovery"] >= 3


def test_a_lost_gpu_is_told_once(machine):
    well(machine)
    time.sleep(0.3)
    machine.gpu(0, lost=1)
    verdict = machine.verdict()
    assert (verdict["gpu_uuid"], verdict["detail"]["rule"]) == ("GPU-sim-0", "gpu_lost")
    assert (verdict["xid"], verdict["advice"]) == (None, "migrate")
    assert machine.silent(0.5)


def test_a_gpu_that_tells_nothing_is_not_judged(machine):
    machine.watch()
    assert machine.silent(1.0)


def test_noise_at_a_steady_rate_asks_for_nothing(machine):
    well(machine)
    chance, total, until = random.Random(3), 3, time.monotonic() + 5
    while time.monotonic() < until:
        total += chance.choice([0, 0, 5, 20, 40])
        machine.gpu(0, ecc_volatile_corrected=total)
        assert machine.silent(0.03)


def test_the_command_prints_what_it_sees(machine):
    machine.gpu(0, **WELL)
    machine.log("NVRM: Xid (PCI:0000:3b:00): 48, pid=7, DBE")
    shown = machine.command()
    assert shown.returncode == 0
    assert "GPU GPU-sim-0 (Simulated H200, 0000:3b:00): 55 of 90 °C, 400.0 of 700.0 W" in shown.stdout
    assert "NVLinks up 2 of 2" in shown.stdout
    assert "GPU GPU-sim-1 (Simulated H200, 0000:3c:00): ? of ? °C" in shown.stdout
    assert "Xid 48 at 0000:3b:00: critical, migrate" in shown.stdout
    assert '"temperature": 55' in machine.command("--json").stdout


def test_without_nvidia_hardware_it_says_so_in_one_sentence_and_goes_on(tmp_path):
    script = (
        "import logging; from agent.health import HealthMonitor, HealthPolicy\n"
        "logging.basicConfig(format='%(message)s')\n"
        "monitor = HealthMonitor(HealthPolicy(), print); print(monitor.start()); monitor.stop()"
    )
    shown = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (shown.returncode, shown.stdout) == (0, "False\n")
    assert shown.stderr == (
        "No NVIDIA GPU can be watched here (NVML: NVML Shared Library Not Found); "
        "the agent goes on without GPU health.\n"
    )


def test_without_the_driver_it_says_so(machine):
    machine.values.clear()
    machine.write()
    assert "(NVML: Driver Not Loaded)" in machine.command().stdout
