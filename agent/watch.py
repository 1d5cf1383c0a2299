"""The launcher's watch over the GPUs of its host: a verdict `migrate` moves the rank that uses that GPU."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from agent.health import HealthMonitor, HealthPolicy, HealthVerdict
from agent.health.fake import SimulatedSource
from agent.health.monitor import KERNEL_LOG, HealthSource
from agent.health.nvml import NvmlSource, NvmlUnavailable
from agent.reporting.incident import json_value, rfc3339
from agent.wire import Message

WARNING_NOTICE_SECONDS = 60.0
CRITICAL_NOTICE_SECONDS = 2.0
"""A GPU that already fails leaves no time for copying ahead."""


@dataclass(frozen=True)
class Watch:
    """How GPUs are watched."""

    enabled: bool = True
    policy: HealthPolicy = field(default_factory=HealthPolicy)
    poll_s: float = 10.0
    kernel_log: Path | None = KERNEL_LOG
    simulated: Path | None = None
    """A control file of `agent.health.fake` in place of NVML."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `agent run` that concern GPU health."""
    health = parser.add_argument_group("GPU health", "a rank leaves a GPU that NVML or the kernel log says will fail")
    health.add_argument("--no-health", action="store_true", help="do not watch the GPUs")
    health.add_argument("--health-poll", type=float, default=10.0, metavar="SECONDS", help="between readings (10)")
    health.add_argument(
        "--health-policy",
        action="append",
        default=[],
        type=_setting,
        metavar="NAME=VALUE",
        help="a threshold of agent.health.HealthPolicy, e.g. hold_s=30 (may be repeated)",
    )
    health.add_argument("--kernel-log", type=Path, default=KERNEL_LOG, metavar="FILE", help=f"({KERNEL_LOG})")
    health.add_argument(
        "--simulated-nvml",
        type=Path,
        metavar="FILE",
        help="for demonstrations: readings from this control file, marked as simulated in every report",
    )


def from_options(options: argparse.Namespace) -> Watch:
    """The watch that the options of `agent run` ask for."""
    return Watch(
        enabled=not options.no_health,
        policy=replace(HealthPolicy(), **dict(options.health_policy)),
        poll_s=options.health_poll,
        kernel_log=options.kernel_log,
        simulated=options.simulated_nvml,
    )


def _setting(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    kinds = {each.name: type(getattr(HealthPolicy(), each.name)) for each in fields(HealthPolicy)}
    if name not in kinds:
        raise argparse.ArgumentTypeError(f"{name!r} is no threshold; there are: {', '.join(kinds)}")
    try:
        return name, kinds[name](value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is no value of {name}") from None


def watch_gpus(
    watch: Watch, node: str, workers: Mapping[int, str], tell: Callable[[Message], None]
) -> HealthMonitor | None:
    """Begin to watch. `workers` by local rank, as it is at any time; `tell` sends to the coordinator.

    None where there is no GPU.
    """
    if not watch.enabled:
        return None
    try:
        source: HealthSource = NvmlSource() if watch.simulated is None else SimulatedSource(watch.simulated)
    except NvmlUnavailable as reason:
        print(f"agent: {reason}", file=sys.stderr, flush=True)
        return None
    logging.basicConfig(format="agent: %(message)s")
    gpus = visible([reading.gpu_uuid for reading in source.readings()], os.environ.get("CUDA_VISIBLE_DEVICES"))
    places = {gpu: local_rank for local_rank, gpu in enumerate(gpus)}

    def act(verdict: HealthVerdict) -> None:
        if verdict.advice != "migrate":
            return
        user = workers.get(places.get(verdict.gpu_uuid or "", -1))
        if user is not None:
            place: Message = {"workers": [user]}
        elif verdict.detail.get("rule") == "sxid":
            place = {"node": node}
        else:
            return
        tell(
            {
                "type": "drain",
                "kind": "preventive",
                "signal": verdict.signal,
                "xid": verdict.xid,
                "gpu_uuid": verdict.gpu_uuid,
                "detail": {"severity": verdict.severity, **json_value(verdict.detail)},
                "at": rfc3339(verdict.at),
                "notice": CRITICAL_NOTICE_SECONDS if verdict.severity == "critical" else WARNING_NOTICE_SECONDS,
                **place,
            }
        )

    monitor = HealthMonitor(watch.policy, act, source, kernel_log=watch.kernel_log, poll_s=watch.poll_s)
    monitor.start()
    return monitor


def visible(gpus: list[str], chosen: str | None) -> list[str]:
    """The GPUs that CUDA numbers from 0, given all in NVML's order and `CUDA_VISIBLE_DEVICES`."""
    if not chosen:
        return gpus
    found: list[str] = []
    for item in (part.strip() for part in chosen.split(",")):
        if item.isdigit():
            found += [gpus[int(item)]] if int(item) < len(gpus) else []
        else:
            found += [gpu for gpu in gpus if gpu.startswith(item)][:1]
    return found
