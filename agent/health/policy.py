"""When a GPU is sick enough to leave: pure rules over readings and XIDs, no clock and no device in here.

Every rule speaks once per episode and again only after the GPU has been well for a while (hysteresis), so
that a value swinging around a threshold asks for one migration, not for a hundred.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import variance
from typing import Any

from agent.health.verdict import Advice, GpuReading, HealthSignal, HealthVerdict, Severity, XidEvent
from agent.health.xids import sxid_judge, xid_judge

THERMAL_REASONS = frozenset({"hw_thermal_slowdown", "sw_thermal_slowdown"})
POWER_REASONS = frozenset({"hw_power_brake"})


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """Thresholds. Seconds, degrees Celsius, counts.

    **Corrected ECC errors** are harmless one by one; a rising rate foretells uncorrectable ones. The window is
    cut in three. The count of new errors must not fall from part to part, the last part must hold
    `ecc_ramp_least` of them and exceed the first by `ecc_ramp_sigmas` standard deviations, and all this must
    hold for two thirds of a window. The deviation is that of a difference of two sums, with the variance that
    the readings themselves show, and never below that of independent errors (Poisson). So neither bursts at a
    steady rate nor the beginning of a steady rate pass for a rising one.
    """

    ecc_window_s: float = 900.0
    ecc_ramp_least: int = 50
    ecc_ramp_sigmas: float = 4.0
    thermal_margin: int = 2
    thermal_clear: int = 10
    thermal_assumed_slowdown: int = 90
    hold_s: float = 60.0
    clear_s: float = 120.0
    link_window_s: float = 600.0
    link_recoveries: int = 3
    link_errors: int = 1000
    xid_repeat_s: float = 60.0


@dataclass(slots=True)
class _Episode:
    """A condition that must hold for a time to count, and be gone for a time to count again."""

    bad_since: float | None = None
    good_since: float | None = None
    spoken: bool = False

    def speaks(self, now: float, *, bad: bool, good: bool, hold_s: float, clear_s: float) -> bool:
        """True at the moment the condition has held `hold_s`; between bad and good nothing changes."""
        if bad:
            self.good_since = None
            if self.bad_since is None:
                self.bad_since = now
            if not self.spoken and now - self.bad_since >= hold_s:
                self.spoken = True
                return True
        elif good:
            if not self.spoken:
                self.bad_since = None
            if self.good_since is None:
                self.good_since = now
            if now - self.good_since >= clear_s:
                self.bad_since, self.spoken = None, False
        elif not self.spoken:
            self.bad_since = None
        return False


@dataclass(slots=True)
class _Gpu:
    readings: deque[GpuReading] = field(default_factory=deque)
    thermal: _Episode = field(default_factory=_Episode)
    power: _Episode = field(default_factory=_Episode)
    ramp: _Episode = field(default_factory=_Episode)
    link: _Episode = field(default_factory=_Episode)
    remap_failed: bool = False
    remap_pending: bool = False
    lost: bool = False
    links_down: set[int] = field(default_factory=set)


class HealthRules:
    """Applies a policy to what is observed, GPU by GPU, in order of time."""

    def __init__(self, policy: HealthPolicy) -> None:
        self.policy = policy
        self._gpus: dict[str, _Gpu] = {}
        self._xids: dict[tuple[str | None, int, bool], float] = {}

    def reading_judge(self, reading: GpuReading) -> list[HealthVerdict]:
        """What this reading, after those before it, says."""
        gpu = self._gpus.setdefault(reading.gpu_uuid, _Gpu())
        if reading.lost:
            return self._lost(gpu, reading)
        gpu.lost = False
        before = gpu.readings[-1] if gpu.readings else None
        if before is not None and _counters_restarted(before, reading):
            gpu.readings.clear()
            before = None
        gpu.readings.append(reading)
        longest = max(self.policy.ecc_window_s, self.policy.link_window_s)
        while len(gpu.readings) > 1 and gpu.readings[1].seconds <= reading.seconds - longest:
            gpu.readings.popleft()
        verdicts = [
            *self._uncorrected(before, reading),
            *self._rows(gpu, reading),
            *self._ramp(gpu, reading),
            *self._thermal(gpu, reading),
            *self._power(gpu, reading),
            *self._links(gpu, reading),
        ]
        return verdicts

    def xid_judge(self, event: XidEvent) -> list[HealthVerdict]:
        """What this XID says.

        The same one again, or told by a second source, says nothing for `xid_repeat_s`.
        """
        where = event.pci if event.switch else event.gpu_uuid or event.pci
        last = self._xids.get((where, event.code, event.switch))
        self._xids[where, event.code, event.switch] = event.seconds
        if last is not None and event.seconds - last < self.policy.xid_repeat_s:
            return []
        told = {"source": event.origin, "pci": event.pci, "text": event.text}
        if event.switch:
            severity, advice = sxid_judge(event.text)
            detail = {"rule": "sxid", "sxid": event.code, **told}
            return [HealthVerdict(None, "link", None, severity, advice, event.at, detail)]
        severity, advice, triage = xid_judge(event.code, event.text)
        detail = {
            "rule": "xid_triage",
            **told,
            "family": triage.family,
            "meaning": triage.meaning,
            "recommended": triage.action,
        }
        return [HealthVerdict(event.gpu_uuid, "xid", event.code, severity, advice, event.at, detail)]

    def _lost(self, gpu: _Gpu, reading: GpuReading) -> list[HealthVerdict]:
        if gpu.lost:
            return []
        gpu.lost = True
        gpu.readings.clear()
        return [self._verdict(reading, "xid", "critical", "migrate", "gpu_lost", {}, {"nvml": "GPU is lost"})]

    def _uncorrected(self, before: GpuReading | None, reading: GpuReading) -> list[HealthVerdict]:
        now, then = reading.ecc_volatile_uncorrected, before.ecc_volatile_uncorrected if before else None
        if now is None or then is None or now <= then:
            return []
        readings = {
            "ecc_volatile_uncorrected": [then, now],
            "ecc_aggregate_uncorrected": reading.ecc_aggregate_uncorrected,
        }
        thresholds = {"ecc_uncorrected_new": 1}
        return [self._verdict(reading, "ecc", "critical", "migrate", "ecc_uncorrected", thresholds, readings)]

    def _rows(self, gpu: _Gpu, reading: GpuReading) -> list[HealthVerdict]:
        readings = {
            "rows_remapped_corrected": reading.rows_remapped_corrected,
            "rows_remapped_uncorrected": reading.rows_remapped_uncorrected,
            "row_remap_pending": reading.row_remap_pending,
            "row_remap_failed": reading.row_remap_failed,
        }
        failed, pending = bool(reading.row_remap_failed), bool(reading.row_remap_pending)
        verdicts = []
        if failed and not gpu.remap_failed:
            verdicts.append(self._verdict(reading, "ecc", "critical", "migrate", "row_remap_failed", {}, readings))
        elif pending and not gpu.remap_pending:
            verdicts.append(self._verdict(reading, "ecc", "warning", "watch", "row_remap_pending", {}, readings))
        gpu.remap_failed, gpu.remap_pending = failed, pending
        return verdicts

    def _ramp(self, gpu: _Gpu, reading: GpuReading) -> list[HealthVerdict]:
        policy = self.policy
        parts = _new_errors_by_third(gpu.readings, policy.ecc_window_s)
        if parts is None:
            return []
        counts = [sum(part) for part in parts]
        first, middle, last = counts
        deviation = math.sqrt(_variance_of_sum(parts[0]) + _variance_of_sum(parts[2]))
        rising = (
            first <= middle <= last
            and last >= policy.ecc_ramp_least
            and last - first >= policy.ecc_ramp_sigmas * deviation
        )
        hold_s = policy.ecc_window_s * 2 / 3
        if not gpu.ramp.speaks(
            reading.seconds, bad=rising, good=not rising, hold_s=hold_s, clear_s=policy.ecc_window_s
        ):
            return []
        readings = {
            "ecc_volatile_corrected": reading.ecc_volatile_corrected,
            "ecc_aggregate_corrected": reading.ecc_aggregate_corrected,
            "new_errors_by_third_of_window": counts,
            "standard_deviation": round(deviation, 1),
        }
        thresholds = {"ecc_ramp_least": policy.ecc_ramp_least, "ecc_ramp_sigmas": policy.ecc_ramp_sigmas}
        window = policy.ecc_window_s
        return [self._verdict(reading, "ecc", "warning", "migrate", "ecc_ramp", thresholds, readings, window)]

    def _thermal(self, gpu: _Gpu, reading: GpuReading) -> list[HealthVerdict]:
        policy = self.policy
        if reading.temperature is None:
            return []
        slowdown = reading.slowdown_temperature or policy.thermal_assumed_slowdown
        reasons = sorted(THERMAL_REASONS & set(reading.slowdown_reasons or ()))
        hot = bool(reasons) or reading.temperature >= slowdown - policy.thermal_margin
        cool = not reasons and reading.temperature <= slowdown - policy.thermal_clear
        if not gpu.thermal.speaks(reading.seconds, bad=hot, good=cool, hold_s=policy.hold_s, clear_s=policy.clear_s):
            return []
        readings = {
            "temperature": reading.temperature,
            "temperatures": [item.temperature for item in _recent(gpu.readings, policy.hold_s)],
            "slowdown_temperature": reading.slowdown_temperature,
            "slowdown_reasons": list(reading.slowdown_reasons or ()),
            "power": reading.power,
        }
        thresholds = {
            "hot_from": slowdown - policy.thermal_margin,
            "cool_to": slowdown - policy.thermal_clear,
            "hold_s": policy.hold_s,
        }
        window = policy.hold_s
        return [self._verdict(reading, "thermal", "warning", "migrate", "thermal_held", thresholds, readings, window)]

    def _power(self, gpu: _Gpu, reading: GpuReading) -> list[HealthVerdict]:
        policy = self.policy
        if reading.slowdown_reasons is None:
            return []
        braked = bool(POWER_REASONS & set(reading.slowdown_reasons))
        if not gpu.power.speaks(
            reading.seconds, bad=braked, good=not braked, hold_s=policy.hold_s, clear_s=policy.clear_s
        ):
            return []
        readings = {
            "slowdown_reasons": list(reading.slowdown_reasons),
            "power": reading.power,
            "power_limit": reading.power_limit,
        }
        thresholds = {"hold_s": policy.hold_s}
        return [
            self._verdict(
                reading, "power", "warning", "migrate", "power_brake_held", thresholds, readings, policy.hold_s
            )
        ]

    def _links(self, gpu: _Gpu, reading: GpuReading) -> list[HealthVerdict]:
        policy, verdicts = self.policy, []
        seen_up = {link for item in gpu.readings for link, up in item.links_up.items() if up}
        down = {link for link, up in reading.links_up.items() if not up and link in seen_up | gpu.links_down}
        fresh = down - gpu.links_down
        gpu.links_down = down
        if fresh:
            readings = {"links_down": sorted(fresh), "links": len(reading.links_up)}
            verdicts.append(
                self._verdict(reading, "link", "critical", "migrate", "link_down", {"links_down": 1}, readings)
            )
        first = next(iter(_recent(gpu.readings, policy.link_window_s)), reading)
        new = {link: _new_errors(first.link_errors.get(link), now) for link, now in reading.link_errors.items()}
        worst = {
            link: counts
            for link, counts in new.items()
            if counts.get("recovery", 0) >= policy.link_recoveries or sum(counts.values()) >= policy.link_errors
        }
        if gpu.link.speaks(reading.seconds, bad=bool(worst), good=not worst, hold_s=0.0, clear_s=policy.link_window_s):
            readings = {"new_errors_by_link": {str(link): dict(counts) for link, counts in worst.items()}}
            thresholds = {"recoveries": policy.link_recoveries, "errors": policy.link_errors}
            window = policy.link_window_s
            verdicts.append(
                self._verdict(reading, "link", "warning", "migrate", "link_errors", thresholds, readings, window)
            )
        return verdicts

    def _verdict(
        self,
        reading: GpuReading,
        signal: HealthSignal,
        severity: Severity,
        advice: Advice,
        rule: str,
        thresholds: Mapping[str, Any],
        readings: Mapping[str, Any],
        window_s: float | None = None,
    ) -> HealthVerdict:
        detail = {
            "rule": rule,
            "source": reading.source,
            "readings": dict(readings),
            "thresholds": dict(thresholds),
            "window_s": window_s,
            "gpu": reading.name,
            "pci": reading.pci,
        }
        return HealthVerdict(reading.gpu_uuid, signal, None, severity, advice, reading.at, detail)


def _recent(readings: deque[GpuReading], window_s: float) -> list[GpuReading]:
    return [item for item in readings if item.seconds >= readings[-1].seconds - window_s]


def _new_errors_by_third(readings: deque[GpuReading], window_s: float) -> list[list[int]] | None:
    """New corrected errors from reading to reading, in each third of the window.

    `None` until a whole window has been seen with two steps in each third.
    """
    begin = readings[-1].seconds - window_s
    known = [item for item in readings if item.ecc_volatile_corrected is not None]
    if not known or known[0].seconds > begin:
        return None
    thirds: list[list[int]] = [[], [], []]
    for before, after in pairwise(known):
        if after.seconds > begin:
            third = min(2, int((after.seconds - begin) / window_s * 3))
            thirds[third].append((after.ecc_volatile_corrected or 0) - (before.ecc_volatile_corrected or 0))
    return thirds if all(len(part) >= 2 for part in thirds) else None


def _variance_of_sum(steps: list[int]) -> float:
    return max(len(steps) * variance(steps), float(sum(steps)))


def _counters_restarted(before: GpuReading, reading: GpuReading) -> bool:
    pairs = (
        (before.ecc_volatile_corrected, reading.ecc_volatile_corrected),
        (before.ecc_volatile_uncorrected, reading.ecc_volatile_uncorrected),
    )
    return any(then is not None and now is not None and now < then for then, now in pairs)


def _new_errors(then: Mapping[str, int] | None, now: Mapping[str, int]) -> dict[str, int]:
    if then is None:
        return {}
    return {name: max(0, count - then.get(name, count)) for name, count in now.items()}
