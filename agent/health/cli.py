"""`agent health`.

Print what NVML and the kernel log show on this machine, and what the policy makes of it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from agent.health.kernel_log import KernelLog
from agent.health.monitor import KERNEL_LOG, HealthMonitor, verdict_text
from agent.health.nvml import NvmlSource, NvmlUnavailable
from agent.health.policy import HealthPolicy
from agent.health.verdict import GpuReading, HealthVerdict
from agent.health.xids import KernelXid, kernel_line_read, sxid_judge, xid_judge


def add_commands(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `health`; it sets `command`, a function from the arguments to an exit status."""
    health = subparsers.add_parser("health", help="print GPU health: ECC, rows, heat, power, NVLink, XIDs")
    health.add_argument("--json", action="store_true", help="print readings and verdicts as JSON lines")
    health.add_argument("--kernel-log", type=Path, default=KERNEL_LOG, metavar="FILE", help=f"({KERNEL_LOG})")
    health.add_argument("--watch", type=float, metavar="SECONDS", help="then watch for so long, print verdicts")
    health.add_argument("--poll", type=float, default=10.0, metavar="SECONDS", help="between readings (10)")
    health.set_defaults(command=_health_run)


def _health_run(arguments: argparse.Namespace) -> int:
    try:
        source = NvmlSource()
    except NvmlUnavailable as reason:
        print(reason)
    else:
        for reading in source.readings():
            print(json.dumps(asdict(reading), default=str) if arguments.json else reading_text(reading))
        source.close()
    try:
        with KernelLog(arguments.kernel_log, from_start=True) as kernel_log:
            found = [event for line in kernel_log.lines(0.0) if (event := kernel_line_read(line)) is not None]
    except OSError as error:
        print(f"The kernel log {arguments.kernel_log} cannot be read: {error.strerror}.", file=sys.stderr)
    else:
        for event in found:
            print(json.dumps(asdict(event)) if arguments.json else _kernel_text(event))
        if not arguments.json:
            print(f"{len(found)} XID(s) in the kernel log {arguments.kernel_log}.")
    if arguments.watch is None:
        return 0

    def show(verdict: HealthVerdict) -> None:
        print(json.dumps(asdict(verdict), default=str) if arguments.json else verdict_text(verdict), flush=True)

    monitor = HealthMonitor(HealthPolicy(), show, kernel_log=arguments.kernel_log, poll_s=arguments.poll)
    if not monitor.start():
        return 0
    try:
        time.sleep(arguments.watch)
    except KeyboardInterrupt:
        pass
    finally:
        monitor.stop()
    return 0


def reading_text(reading: GpuReading) -> str:
    """One reading in two lines for people; `?` where the GPU does not tell."""
    if reading.lost:
        return f"GPU {reading.gpu_uuid} ({reading.name}): NVML has lost it."

    def told(value: object) -> str:
        return "?" if value is None else str(value)

    up = sum(reading.links_up.values())
    errors = sum(count for counts in reading.link_errors.values() for count in counts.values())
    reasons = "?" if reading.slowdown_reasons is None else ", ".join(reading.slowdown_reasons) or "none"
    return (
        f"GPU {reading.gpu_uuid} ({told(reading.name)}, {told(reading.pci)}): {told(reading.temperature)} of "
        f"{told(reading.slowdown_temperature)} °C, {told(reading.power)} of {told(reading.power_limit)} W, "
        f"slowdown: {reasons}\n"
        f"  ECC corrected {told(reading.ecc_volatile_corrected)} (ever {told(reading.ecc_aggregate_corrected)}), "
        f"uncorrected {told(reading.ecc_volatile_uncorrected)} (ever {told(reading.ecc_aggregate_uncorrected)}); "
        f"rows remapped {told(reading.rows_remapped_corrected)} + {told(reading.rows_remapped_uncorrected)}, "
        f"pending {told(reading.row_remap_pending)}, failed {told(reading.row_remap_failed)}; "
        f"NVLinks up {up} of {len(reading.links_up)}, {errors} errors"
    )


def _kernel_text(event: KernelXid) -> str:
    if event.switch:
        severity, advice = sxid_judge(event.text)
        return f"SXid {event.code} at {event.pci}: {severity}, {advice} ({event.text})"
    severity, advice, triage = xid_judge(event.code, event.text)
    return f"Xid {event.code} at {event.pci}: {severity}, {advice}. {triage.meaning}. {triage.action}."
