"""Watches GPUs in the background and tells of what the policy concludes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Protocol, TypeVar

from agent.health.kernel_log import KernelLog
from agent.health.nvml import NvmlSource, NvmlUnavailable
from agent.health.policy import HealthPolicy, HealthRules
from agent.health.verdict import GpuReading, HealthVerdict, XidEvent
from agent.health.xids import kernel_line_read

log = logging.getLogger("agent.health")

_Observed = TypeVar("_Observed", GpuReading, XidEvent)
KERNEL_LOG = Path("/dev/kmsg")
WAIT_S = 0.5
"""How long a thread waits for an event before it looks whether it should stop."""


class HealthSource(Protocol):
    """Where readings and XID events come from; `NvmlSource` is the real one."""

    def readings(self) -> list[GpuReading]:
        """One reading per GPU, now."""

    def xids(self, timeout_s: float) -> list[XidEvent]:
        """Wait for XID events."""

    def gpu_uuid(self, pci: str) -> str | None:
        """The GPU at a PCI address."""

    def close(self) -> None:
        """Release what is held."""


class HealthMonitor:
    """Reads every GPU each `poll_s` seconds, waits for XIDs, and follows the kernel log at the same time.

    `on_verdict` is called from the monitor's threads, one call at a time; what it raises is logged. `source`
    `None` opens NVML; without NVIDIA hardware `start` says so in one sentence and returns False. `kernel_log`
    `None` reads none.
    """

    def __init__(
        self,
        policy: HealthPolicy,
        on_verdict: Callable[[HealthVerdict], None],
        source: HealthSource | None = None,
        *,
        kernel_log: Path | None = KERNEL_LOG,
        poll_s: float = 10.0,
    ) -> None:
        self._rules = HealthRules(policy)
        self._on_verdict = on_verdict
        self._source = source
        self._kernel_log_path = kernel_log
        self._kernel_log: KernelLog | None = None
        self._poll_s = poll_s
        self._stopping = Event()
        self._one_at_a_time = Lock()
        self._threads: list[Thread] = []

    def start(self) -> bool:
        """Begin to watch. False when there is nothing to watch; never raises for want of hardware."""
        watches = []
        if self._source is None:
            try:
                self._source = NvmlSource()
            except NvmlUnavailable as reason:
                log.warning("%s", reason)
        if self._source is not None:
            watches += [self._watch_readings, self._watch_xids]
        if self._kernel_log_path is not None and (self._source is not None or self._kernel_log_path != KERNEL_LOG):
            try:
                self._kernel_log = KernelLog(self._kernel_log_path)
                watches.append(self._watch_kernel_log)
            except OSError as error:
                log.warning("The kernel log %s is not watched: %s.", self._kernel_log_path, error.strerror)
        self._threads = [Thread(target=watch, name=watch.__name__, daemon=True) for watch in watches]
        for thread in self._threads:
            thread.start()
        return bool(watches)

    def stop(self) -> None:
        """Stop watching; returns when the threads have ended."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(self._poll_s + 5.0)
        if self._kernel_log is not None:
            self._kernel_log.close()
            self._kernel_log = None
        if self._source is not None and not any(thread.is_alive() for thread in self._threads):
            self._source.close()
            self._source = None

    def _watch_readings(self) -> None:
        assert self._source is not None
        while not self._stopping.is_set():
            try:
                for reading in self._source.readings():
                    self._tell(self._rules.reading_judge, reading)
            except Exception:
                log.exception("GPU health could not be read; it is tried again.")
            self._stopping.wait(self._poll_s)

    def _watch_xids(self) -> None:
        assert self._source is not None
        while not self._stopping.is_set():
            try:
                for event in self._source.xids(WAIT_S):
                    self._tell(self._rules.xid_judge, event)
            except Exception:
                log.exception("XID events could not be read; it is tried again.")
                self._stopping.wait(self._poll_s)

    def _watch_kernel_log(self) -> None:
        assert self._kernel_log is not None
        while not self._stopping.is_set():
            try:
                for line in self._kernel_log.lines(WAIT_S):
                    event = self._event_in(line)
                    if event is not None:
                        self._tell(self._rules.xid_judge, event)
            except Exception:
                log.exception("The kernel log could not be read; it is tried again.")
                self._stopping.wait(self._poll_s)

    def _event_in(self, line: str) -> XidEvent | None:
        found = kernel_line_read(line)
        if found is None:
            return None
        return XidEvent(
            code=found.code,
            at=datetime.now(UTC),
            seconds=time.monotonic(),
            origin="kernel_log",
            gpu_uuid=None if found.switch or self._source is None else self._source.gpu_uuid(found.pci),
            pci=found.pci,
            text=found.text,
            switch=found.switch,
        )

    def _tell(self, judge: Callable[[_Observed], list[HealthVerdict]], observed: _Observed) -> None:
        with self._one_at_a_time:
            for verdict in judge(observed):
                level = logging.WARNING if verdict.advice == "migrate" else logging.INFO
                log.log(level, "%s", verdict_text(verdict))
                try:
                    self._on_verdict(verdict)
                except Exception:
                    log.exception("A health verdict could not be acted on.")


def verdict_text(verdict: HealthVerdict) -> str:
    """One line for people."""
    what = f"Xid {verdict.xid}" if verdict.xid is not None else str(verdict.detail.get("rule"))
    meaning = verdict.detail.get("meaning") or verdict.detail.get("text")
    return (
        f"GPU {verdict.gpu_uuid or verdict.detail.get('pci') or 'unknown'}: {verdict.signal}, {what}"
        f"{f' ({meaning})' if meaning else ''}: {verdict.severity}, {verdict.advice}"
    )
