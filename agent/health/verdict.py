"""What health monitoring observes and what it concludes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from agent.reporting.incident import Trigger

HealthSignal = Literal["xid", "ecc", "thermal", "power", "link"]
Severity = Literal["info", "warning", "critical"]
Advice = Literal["migrate", "watch"]
XidOrigin = Literal["nvml", "kernel_log", "simulated"]


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One look at one GPU. `None`: this GPU or driver does not tell.

    `at` is wall time for people, `seconds` a clock that never jumps, for windows. Error counters only rise
    until the driver is loaded anew. Temperatures in degrees Celsius, power in watts.
    """

    gpu_uuid: str
    at: datetime
    seconds: float
    name: str | None = None
    pci: str | None = None
    lost: bool = False
    ecc_volatile_corrected: int | None = None
    ecc_volatile_uncorrected: int | None = None
    ecc_aggregate_corrected: int | None = None
    ecc_aggregate_uncorrected: int | None = None
    rows_remapped_corrected: int | None = None
    rows_remapped_uncorrected: int | None = None
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    temperature: int | None = None
    slowdown_temperature: int | None = None
    slowdown_reasons: tuple[str, ...] | None = None
    power: float | None = None
    power_limit: float | None = None
    source: Literal["nvml", "simulated"] = "nvml"
    links_up: Mapping[int, bool] = field(default_factory=dict)
    link_errors: Mapping[int, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One XID (from a GPU) or SXid (from an NVSwitch), told by the driver."""

    code: int
    at: datetime
    seconds: float
    origin: XidOrigin
    gpu_uuid: str | None = None
    pci: str | None = None
    text: str | None = None
    switch: bool = False


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """A conclusion with its evidence.

    `advice` `migrate` asks for a preventive migration; `watch` is for the log. `gpu_uuid` `None`: the whole
    node (an NVSwitch), or a GPU that NVML does not know. `detail` holds the rule, the readings used,
    thresholds and window.
    """

    gpu_uuid: str | None
    signal: HealthSignal
    xid: int | None
    severity: Severity
    advice: Advice
    at: datetime
    detail: Mapping[str, Any]

    def trigger(self) -> Trigger:
        """The trigger of the incident that follows from this verdict."""
        return Trigger(signal=self.signal, xid=self.xid, detail=self.detail)
