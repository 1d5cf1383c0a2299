"""Whether a trigger is evidenced: the report carries the reading that belongs to its signal. Pure.

The names are those that agent/health reports, at the top of the trigger's detail or in its `readings` and `thresholds`.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from yoco.incidents.triage import triage

# Volatile counters and new errors tell of now; a lifetime count says nothing of what is about to happen.
ECC_COUNTERS = ("ecc_volatile_corrected", "ecc_volatile_uncorrected", "new_errors_by_third_of_window")
REMAP_STATES = ("row_remap_pending", "row_remap_failed")
THERMAL_REASONS = frozenset({"hw_thermal_slowdown", "sw_thermal_slowdown"})
POWER_REASONS = frozenset({"hw_power_brake"})
LOST = "GPU is lost"
FATAL = re.compile(r"(?<!non)(?<!non-)(?<!non )\bfatal\b", re.IGNORECASE)


def reading_evidences(signal: str, detail: Mapping[str, Any]) -> bool:
    """The detail holds the reading that belongs to this signal, and it shows what the signal says."""
    evidences = READINGS.get(signal)
    if evidences is None:
        return False
    found: dict[str, Any] = {}
    for part in (detail.get("thresholds"), detail, detail.get("readings")):
        if isinstance(part, Mapping):
            found |= part
    return evidences(found)


def xid_foretells(xid: int | None, detail: Mapping[str, Any]) -> bool:
    """The triage table knows this XID as a fault of the device or its precursor, or as fatal where its line says so.

    A code that counts only with other evidence, or tells of the application, foretells nothing.
    """
    entry = triage(xid) if xid is not None else None
    if entry is None:
        return False
    return entry.counts in ("always", "if_interrupted", "precursor") or (
        entry.counts == "by_severity" and _fatal(detail)
    )


def _ecc(readings: Mapping[str, Any]) -> bool:
    counted = any(_positive(readings.get(name)) for name in ECC_COUNTERS)
    return counted or any(readings.get(name) is True for name in REMAP_STATES)


def _thermal(readings: Mapping[str, Any]) -> bool:
    temperature = _number(readings.get("temperature"))
    if temperature is None:
        return False
    limit = _number(readings.get("hot_from"))
    if limit is None:
        limit = _number(readings.get("slowdown_temperature"))
    return _named(readings, THERMAL_REASONS) or (limit is not None and temperature >= limit)


def _power(readings: Mapping[str, Any]) -> bool:
    return _named(readings, POWER_REASONS)


def _link(readings: Mapping[str, Any]) -> bool:
    down = readings.get("links_down")
    if isinstance(down, list) and any(_number(link) is not None for link in down):
        return True
    if _positive(readings.get("new_errors_by_link")):
        return True
    return _number(readings.get("sxid")) is not None and _fatal(readings)


def _xid(readings: Mapping[str, Any]) -> bool:
    return readings.get("nvml") == LOST


READINGS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "ecc": _ecc,
    "thermal": _thermal,
    "power": _power,
    "link": _link,
    "xid": _xid,
}


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _positive(value: Any) -> bool:
    """A number above zero, here or further inside."""
    if isinstance(value, Mapping):
        return any(_positive(member) for member in value.values())
    if isinstance(value, list):
        return any(_positive(member) for member in value)
    number = _number(value)
    return number is not None and number > 0


def _named(readings: Mapping[str, Any], reasons: frozenset[str]) -> bool:
    said = readings.get("slowdown_reasons")
    return isinstance(said, list) and any(reason in reasons for reason in said if isinstance(reason, str))


def _fatal(detail: Mapping[str, Any]) -> bool:
    text = detail.get("text")
    return isinstance(text, str) and FATAL.search(text) is not None
