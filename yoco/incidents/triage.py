"""What an XID or SXid means for the guarantee: `xid_triage.csv`, our own wording of NVIDIA's public catalogue."""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, cast

Counts = Literal["always", "if_interrupted", "if_recurrent", "needs_root", "precursor", "by_severity", "never"]
Family = Literal["xid", "sxid"]


@dataclass(frozen=True, slots=True)
class Triage:
    """One code. `counts` says whether it is an infrastructure failure; `action` is what NVIDIA recommends at once."""

    family: Family
    code: int
    name: str
    fault_class: str
    severity: str
    counts: Counts
    action: str
    note: str


@cache
def triage_table() -> dict[tuple[str, int], Triage]:
    """Every known code by (family, code)."""
    with Path(__file__).with_name("xid_triage.csv").open(newline="", encoding="utf-8") as file:
        rows = [
            Triage(
                family=cast(Family, row["family"]),
                code=int(row["code"]),
                name=row["name"],
                fault_class=row["class"],
                severity=row["severity"],
                counts=cast(Counts, row["counts"]),
                action=row["action"],
                note=row["note"],
            )
            for row in csv.DictReader(file)
        ]
    return {(row.family, row.code): row for row in rows}


def triage(code: int, *, family: Family = "xid") -> Triage | None:
    """The entry of a code, or None for one the table does not know."""
    return triage_table().get((family, code))


def cause(signal: str, xid: int | None) -> str:
    """The cause of an incident as one text: the signal, or `xid:79`."""
    return f"xid:{xid}" if xid is not None else signal


# Which of several causes on one node within the window is the root: the lowest, then the earliest.
_SIGNAL_PRECEDENCE = {
    "operator": 0,
    "power": 0,
    "ecc": 2,
    "thermal": 2,
    "link": 4,
    "xid": 5,
    "hang": 6,
    "heartbeat_lost": 6,
    "process_exit": 6,
}
_COUNTS_PRECEDENCE: dict[Counts, int] = {
    "always": 1,
    "if_interrupted": 2,
    "by_severity": 3,
    "needs_root": 4,
    "if_recurrent": 4,
    "precursor": 3,
    "never": 7,
}


@cache
def cause_precedence(text: str) -> int:
    """How likely a cause is the root of what else happens at the same place; smaller is nearer the root."""
    family, _, code = text.partition(":")
    if not code:
        return _SIGNAL_PRECEDENCE.get(family, 6)
    entry = triage(int(code), family=cast(Family, family))
    if entry is None:
        return 5
    # A switch complains because a GPU went away, hardly ever the other way round.
    return 4 if entry.family == "sxid" else _COUNTS_PRECEDENCE[entry.counts]
