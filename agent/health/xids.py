"""XID and SXid: reading them in a kernel log line, and what each means for a running job."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal, cast

from agent.health.verdict import Advice, Severity

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): (?P<code>\d+)(?:,\s*(?P<text>.*))?")
_SXID = re.compile(r"SXid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): (?P<code>\d+)(?:,\s*(?P<text>.*))?")
_FATAL = re.compile(r"(?<!non)(?<!non-)(?<!non )\bfatal\b", re.IGNORECASE)
_RECOVERY_ACTION = re.compile(r"to 0x(?P<action>[0-9a-f]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class KernelXid:
    """An XID or SXid as a kernel log line tells it."""

    code: int
    pci: str
    text: str | None
    switch: bool


@dataclass(frozen=True, slots=True)
class Triage:
    """One row of triage.csv. `by_text`: the code alone does not tell, the line's words do."""

    family: str
    severity: Severity
    advice: Literal["migrate", "watch", "by_text"]
    meaning: str
    action: str


UNKNOWN = Triage("unknown", "warning", "watch", "A code that this agent does not know", "Look it up")


def kernel_line_read(line: str) -> KernelXid | None:
    """The XID or SXid in a kernel log line, `None` when there is none."""
    for pattern, switch in ((_XID, False), (_SXID, True)):
        match = pattern.search(line)
        if match is not None:
            text = (match["text"] or "").strip() or None
            return KernelXid(code=int(match["code"]), pci=pci_address(match["pci"]), text=text, switch=switch)
    return None


def pci_address(text: str) -> str:
    """A PCI address as `domain:bus:device`, however many digits and functions it was written with.

    `00000000:3B:00.0` (NVML) and `0000:3b:00` (kernel log) are the same. What is no address comes back in
    lower case.
    """
    match = re.fullmatch(r"(?:([0-9a-f]+):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.[0-7])?", text.lower())
    if match is None:
        return text.lower()
    domain, bus, device = (int(part or "0", 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}"


@cache
def triage_table() -> dict[int, Triage]:
    """The triage table by XID."""
    with resources.files("agent.health").joinpath("triage.csv").open(encoding="utf-8") as file:
        return {
            int(row["xid"]): Triage(
                family=row["family"],
                severity=cast(Severity, row["severity"]),
                advice=cast(Literal["migrate", "watch", "by_text"], row["advice"]),
                meaning=row["meaning"],
                action=row["action"],
            )
            for row in csv.DictReader(file)
        }


def xid_judge(code: int, text: str | None) -> tuple[Severity, Advice, Triage]:
    """Severity and advice for an XID; where the code alone does not tell, from the words of its line.

    NVLink 5 lines (144 to 150) carry their severity as a word. Xid 154 names the recovery action the driver
    now asks for: 0 is none, anything else means that the GPU or the node must be reset.
    """
    triage = triage_table().get(code, UNKNOWN)
    if triage.advice != "by_text":
        return triage.severity, triage.advice, triage
    words = text or ""
    if code == 154:
        action = _RECOVERY_ACTION.search(words)
        serious = action is not None and int(action["action"], 16) > 0
    else:
        serious = _FATAL.search(words) is not None
    return ("critical", "migrate", triage) if serious else (triage.severity, "watch", triage)


def sxid_judge(text: str | None) -> tuple[Severity, Advice]:
    """Severity and advice for an SXid: the driver writes `Fatal` or `Non-fatal` into the line."""
    return ("critical", "migrate") if _FATAL.search(text or "") else ("info", "watch")
