"""Readings and XID events from NVML, through `pynvml` (the distribution nvidia-ml-py).

A GPU or driver that does not support a query answers `None` there; nothing is inferred from a missing value.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pynvml

from agent.health.verdict import GpuReading, XidEvent
from agent.health.xids import pci_address

log = logging.getLogger("agent.health")

SLOWDOWN_REASONS = {
    pynvml.nvmlClocksEventReasonSwPowerCap: "sw_power_cap",
    pynvml.nvmlClocksEventReasonHwSlowdown: "hw_slowdown",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "sw_thermal_slowdown",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "hw_thermal_slowdown",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "hw_power_brake",
}
LINK_COUNTERS = {
    pynvml.NVML_NVLINK_ERROR_DL_REPLAY: "replay",
    pynvml.NVML_NVLINK_ERROR_DL_RECOVERY: "recovery",
    pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT: "crc_flit",
    pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA: "crc_data",
    pynvml.NVML_NVLINK_ERROR_DL_ECC_DATA: "ecc_data",
}
_GONE = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND})


class NvmlUnavailable(Exception):
    """There is no NVIDIA GPU to watch here; `str()` is one sentence that says why."""


class _GpuGone(Exception):
    pass


@dataclass(frozen=True, slots=True)
class _Device:
    handle: Any
    uuid: str
    name: str | None
    pci: str | None


class NvmlSource:
    """The GPUs of this machine. One thread may read while another waits for XIDs."""

    def __init__(self) -> None:
        """Raises NvmlUnavailable without the library, the driver or a GPU."""
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlUnavailable(
                f"No NVIDIA GPU can be watched here (NVML: {error}); the agent goes on without GPU health."
            ) from None
        self._devices = self._devices_find()
        if not self._devices:
            pynvml.nvmlShutdown()
            raise NvmlUnavailable("NVML knows no GPU on this machine; the agent goes on without GPU health.")
        self._by_pci = {device.pci: device.uuid for device in self._devices if device.pci}
        self._events = self._events_register()

    def gpu_uuid(self, pci: str) -> str | None:
        """The UUID of the GPU at a PCI address as `pci_address` writes it."""
        return self._by_pci.get(pci)

    def readings(self) -> list[GpuReading]:
        """One reading of every GPU, now."""
        return [self._reading(device) for device in self._devices]

    def xids(self, timeout_s: float) -> list[XidEvent]:
        """Wait at most `timeout_s` for an XID event."""
        if self._events is None:
            time.sleep(timeout_s)
            return []
        try:
            event = pynvml.nvmlEventSetWait_v2(self._events, int(timeout_s * 1000))
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_TIMEOUT:
                log.debug("Waiting for XID events: %s", error)
                time.sleep(timeout_s)
            return []
        if not event.eventType & pynvml.nvmlEventTypeXidCriticalError:
            return []
        uuid = _ask(pynvml.nvmlDeviceGetUUID, event.device, gone=None)
        pci = next((device.pci for device in self._devices if device.uuid == uuid), None)
        return [XidEvent(int(event.eventData), datetime.now(UTC), time.monotonic(), "nvml", uuid, pci)]

    def close(self) -> None:
        """Leave NVML."""
        if self._events is not None:
            _ask(pynvml.nvmlEventSetFree, self._events, gone=None)
            self._events = None
        pynvml.nvmlShutdown()

    def _devices_find(self) -> list[_Device]:
        devices = []
        for index in range(_ask(pynvml.nvmlDeviceGetCount) or 0):
            handle = _ask(pynvml.nvmlDeviceGetHandleByIndex, index, gone=None)
            uuid = None if handle is None else _ask(pynvml.nvmlDeviceGetUUID, handle, gone=None)
            if uuid is None:
                log.warning("NVML gives no access to GPU %d; it is not watched.", index)
                continue
            bus = _ask(pynvml.nvmlDeviceGetPciInfo, handle, gone=None)
            pci = None if bus is None else pci_address(_text(bus.busId))
            name = _ask(pynvml.nvmlDeviceGetName, handle, gone=None)
            devices.append(_Device(handle, _text(uuid), None if name is None else _text(name), pci))
        return devices

    def _events_register(self) -> Any:
        events = _ask(pynvml.nvmlEventSetCreate)
        if events is None:
            return None
        registered = 0
        for device in self._devices:
            supported = _ask(pynvml.nvmlDeviceGetSupportedEventTypes, device.handle, gone=None) or 0
            if supported & pynvml.nvmlEventTypeXidCriticalError:
                try:
                    pynvml.nvmlDeviceRegisterEvents(device.handle, pynvml.nvmlEventTypeXidCriticalError, events)
                    registered += 1
                except pynvml.NVMLError as error:
                    log.warning("XID events of GPU %s cannot be had: %s", device.uuid, error)
        if registered:
            return events
        _ask(pynvml.nvmlEventSetFree, events)
        return None

    def _reading(self, device: _Device) -> GpuReading:
        at, seconds = datetime.now(UTC), time.monotonic()
        try:
            values = _values(device.handle)
        except _GpuGone:
            return GpuReading(device.uuid, at, seconds, device.name, device.pci, lost=True)
        return GpuReading(device.uuid, at, seconds, device.name, device.pci, **values)


def _values(handle: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for kind, error_type in (
        ("corrected", pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ("uncorrected", pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
    ):
        for span, counter in (("volatile", pynvml.NVML_VOLATILE_ECC), ("aggregate", pynvml.NVML_AGGREGATE_ECC)):
            values[f"ecc_{span}_{kind}"] = _ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, error_type, counter)
    rows = _ask(pynvml.nvmlDeviceGetRemappedRows, handle)
    if rows is not None:
        values["rows_remapped_corrected"], values["rows_remapped_uncorrected"] = rows[0], rows[1]
        values["row_remap_pending"], values["row_remap_failed"] = bool(rows[2]), bool(rows[3])
    values["temperature"] = _ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
    values["slowdown_temperature"] = _ask(
        pynvml.nvmlDeviceGetTemperatureThreshold, handle, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    )
    reasons = _ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if reasons is None:  # drivers before 535 know it by its old name only
        reasons = _ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    if reasons is not None:
        values["slowdown_reasons"] = tuple(name for bit, name in SLOWDOWN_REASONS.items() if reasons & bit)
    for name, query in (
        ("power", pynvml.nvmlDeviceGetPowerUsage),
        ("power_limit", pynvml.nvmlDeviceGetEnforcedPowerLimit),
    ):
        milliwatts = _ask(query, handle)
        values[name] = None if milliwatts is None else milliwatts / 1000
    links_up: dict[int, bool] = {}
    link_errors: dict[int, dict[str, int]] = {}
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = _ask(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            break
        links_up[link] = state == pynvml.NVML_FEATURE_ENABLED
        counts = {
            name: _ask(pynvml.nvmlDeviceGetNvLinkErrorCounter, handle, link, counter)
            for counter, name in LINK_COUNTERS.items()
        }
        link_errors[link] = {name: count for name, count in counts.items() if count is not None}
    values["links_up"], values["link_errors"] = links_up, link_errors
    return values


def _ask(query: Callable[..., Any], *arguments: Any, gone: type[Exception] | None = _GpuGone) -> Any:
    """The answer, `None` where the GPU or driver has none; raises `gone` when the GPU has left the bus."""
    try:
        return query(*arguments)
    except pynvml.NVMLError as error:
        if gone is not None and error.value in _GONE:
            raise gone from None
        return None


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
