"""What a trigger proves, whatever the report calls it. Pure.

Used where reports become incidents, where incidents are grouped, and by the guarantee's rules.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

Kind = Literal["unplanned", "preventive", "planned"]

# Once one of these is seen, the failure has happened: nothing was prevented and nobody planned it.
FAILURE_SIGNALS = frozenset({"process_exit", "heartbeat_lost", "hang"})


def kind_evidenced(kind: Kind, *, signal: str, xid: int | None) -> Kind:
    """The kind that the trigger allows: a failure reported as planned or preventive would leave the ratio by a word."""
    if kind == "unplanned" or signal in FAILURE_SIGNALS:
        return "unplanned"
    if kind == "planned" and (xid is not None or signal == "xid"):
        return "unplanned"
    if kind == "planned" and signal != "operator":
        return "preventive"
    return kind


def has_reading(value: Any) -> bool:
    """A number stands somewhere in it; yes-or-no values and words are no reading."""
    return any(_numbers(value))


def _numbers(value: Any) -> Iterator[bool]:
    if isinstance(value, Mapping):
        for member in value.values():
            yield from _numbers(member)
    elif isinstance(value, list):
        for member in value:
            yield from _numbers(member)
    else:
        yield isinstance(value, int | float) and not isinstance(value, bool)
