"""Kernel logs (dmesg, journalctl): XID lines of the GPU driver and SXid lines of NVSwitch, gathered into events.

All lines of one node that follow each other within the root event window are one event, named after its root: an XID
79 and the SXid 20034 of three switches twelve seconds later are one, and so are 800,000 repetitions of one error.
"""

import datetime
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _

from yoco.incidents.importers.records import (
    Counted,
    Imported,
    ImportSpec,
    Record,
    Rejected,
    RowError,
    SpecError,
    instant,
    report_of,
    whole_number,
    written,
)
from yoco.incidents.triage import Triage, cause_precedence, triage

ERROR = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<gpu>[0-9A-Fa-f:.]+)\): (?P<xid>\d+)\b(?P<rest>.*)"
    r"|nvidia-nvswitch\d*: SXid \((?:PCI:)?(?P<switch>[0-9A-Fa-f:.]+)\): (?P<sxid>\d+)\b(?P<word>.*)"
)
SINCE_BOOT = re.compile(r"\[\s*(?P<seconds>\d+\.\d+)\]")
CLOCK = re.compile(r"\[(?P<time>\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})\]")
ISO = re.compile(r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?) (?P<node>\S+) ")
SYSLOG = re.compile(r"\w{3} [ \d]\d \d\d:\d\d:\d\d ")
MAX_DEVICES = 32


@dataclass(slots=True)
class _Event:
    """The lines of one node so far."""

    node: str
    line: int
    first_at: datetime.datetime
    last_at: datetime.datetime
    lines: int = 0
    fatal: bool = False
    codes: Counter[str] = field(default_factory=Counter)
    devices: set[str] = field(default_factory=set)
    first_of: dict[str, datetime.datetime] = field(default_factory=dict)


def dmesg_read(lines: Iterable[str], spec: ImportSpec) -> Iterator[Record]:
    """One report for each event that is an infrastructure failure; memory grows with the nodes, not with the lines."""
    for name in ("run_id", "gpus"):
        if name not in spec.constants:
            raise SpecError(
                _("A kernel log does not know the workload; set %(field)s for the whole file.") % {"field": name}
            )
    gpus = whole_number(spec.constants["gpus"], "gpus")
    open_events: dict[str, _Event] = {}
    others = 0
    for number, raw in enumerate(lines, start=1):
        found = ERROR.search(raw) if "Xid" in raw else None
        if found is None:
            others += 1
            continue
        try:
            at, node = _when_and_where(raw, spec)
        except RowError as error:
            yield Rejected(number, str(error), raw.rstrip("\r\n")[:500])
            continue
        event = open_events.get(node)
        if event is not None:
            earlier, later = sorted((at, event.last_at))
            if later - earlier > spec.window(earlier):
                yield _record(event, spec, gpus)
                event = None
        if event is None:
            event = open_events[node] = _Event(node=node, line=number, first_at=at, last_at=at)
        _gather(event, found, at)
    for event in open_events.values():
        yield _record(event, spec, gpus)
    if others:
        yield Counted(_("lines without XID or SXid"), others)


def _gather(event: _Event, found: re.Match[str], at: datetime.datetime) -> None:
    code = f"xid:{int(found['xid'])}" if found["xid"] else f"sxid:{int(found['sxid'])}"
    rest = found["rest"] or found["word"] or ""
    event.lines += 1
    event.codes[code] += 1
    event.first_of.setdefault(code, at)
    event.fatal = event.fatal or ("Fatal" in rest and "Non-fatal" not in rest)
    if len(event.devices) < MAX_DEVICES:
        event.devices.add(found["gpu"] or found["switch"])
    event.first_at, event.last_at = min(event.first_at, at), max(event.last_at, at)


def _when_and_where(text: str, spec: ImportSpec) -> tuple[datetime.datetime, str]:
    node = spec.constants.get("node", "")
    if found := ISO.match(text):
        return instant(found["time"], spec), node or found["node"]
    if found := SINCE_BOOT.search(text):
        if spec.boot_time is None:
            raise RowError(_("The time counts from the start of the machine; say when that was."))
        try:
            at = spec.boot_time + datetime.timedelta(seconds=float(found["seconds"]))
        except OverflowError:
            raise RowError(_("The line has no time that can be read.")) from None
        return at, _named(node)
    if found := CLOCK.search(text):
        at = datetime.datetime.strptime(found["time"], "%a %b %d %H:%M:%S %Y")  # noqa: DTZ007  (the spec names the zone)
        return instant(at.isoformat(), spec), _named(node)
    if SYSLOG.match(text):
        raise RowError(_("The time has no year; export with journalctl --output=short-iso."))
    raise RowError(_("The line has no time that can be read."))


def _named(node: str) -> str:
    if not node:
        raise RowError(_("The line does not name its node; set node for the whole file."))
    return node


def _record(event: _Event, spec: ImportSpec, gpus: int) -> Record:
    root = min(event.codes, key=lambda code: (cause_precedence(code), event.first_of[code], code))
    family, number = root.split(":")
    entry = triage(int(number), family="xid" if family == "xid" else "sxid")
    if not _is_failure(entry, event):
        what = _("lines of %(code)s, no failure of the infrastructure") % {"code": root.upper()}
        return Counted(what, event.lines)
    trigger: dict[str, Any] = {
        "signal": "xid" if family == "xid" else "link",
        "detail": {
            "root": root,
            "lines": event.lines,
            "codes": dict(sorted(event.codes.items())),
            "devices": sorted(event.devices),
            "until": written(event.last_at),
        },
    }
    if family == "xid":
        trigger["xid"] = int(number)
    body: dict[str, Any] = {
        "type": "incident.detected",
        "workload": {"run_id": spec.constants["run_id"], "gpus": gpus},
        "kind": "unplanned",
        "trigger": trigger,
        "where": {"node": event.node},
        "phases": {"started_at": written(event.first_at)},
    }
    identity = f"{event.node}:{root}:{written(event.first_at)}"
    return Imported(event.line, report_of(spec, identity=identity, body=body, told_at=event.last_at))


def _is_failure(entry: Triage | None, event: _Event) -> bool:
    """An unknown code counts: leaving it out would flatter the vendor."""
    if entry is None or entry.counts in ("always", "if_interrupted"):
        return True
    return entry.counts == "by_severity" and event.fatal
