"""What importers have in common: what they are told, what they yield, and how a row becomes a report."""

import datetime
import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _

Format = Literal["csv", "sacct", "dmesg"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSpec:
    """How a file is to be read.

    `zone` is needed for times without offset, `fold` only for those in a repeated hour: 0 the first, 1 the second.
    `columns` maps our fields to the file's columns, `constants` gives fields the same value in every row.
    `window` is the root event window at an instant.
    """

    format: Format
    contract_id: uuid.UUID
    zone: ZoneInfo | None = None
    fold: Literal[0, 1] | None = None
    time_format: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    boot_time: datetime.datetime | None = None
    window: Callable[[datetime.datetime], datetime.timedelta] = lambda at: datetime.timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Imported:
    """A row, or several lines of one event, as a report."""

    line: int
    report: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rejected:
    """A line that could not be read, and why."""

    line: int
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Counted:
    """Lines that were read and are no incident, such as a completed job; `what` names them in the summary."""

    what: str
    lines: int = 1


Record = Imported | Rejected | Counted


class SpecError(Exception):
    """The file cannot be read as told: a column is missing, an option is."""


class RowError(Exception):
    """This row cannot be read; the message says why."""


def instant(text: str, spec: ImportSpec) -> datetime.datetime:
    """The instant of a written time.

    Raises RowError for a time without offset and without zone, for one that a clock change skipped, and for one that
    came twice, unless the spec says which of the two is meant.
    """
    text = text.strip()
    try:
        if spec.time_format:
            at = datetime.datetime.strptime(text, spec.time_format)  # noqa: DTZ007  (the zone follows below)
        else:
            at = datetime.datetime.fromisoformat(text)
    except (ValueError, re.error):  # a format that names a part twice is no pattern
        if spec.time_format:
            sentence = _("“%(text)s” is not a time in the format %(format)s.")
        else:
            sentence = _("“%(text)s” is not a time in ISO 8601; if the file writes times otherwise, name their format.")
        raise RowError(sentence % {"text": text[:40], "format": spec.time_format}) from None
    if at.tzinfo is not None:
        return _in_utc(at, text)
    if spec.zone is None:
        raise RowError(_("%(text)s has no offset from UTC; name the time zone of the file.") % {"text": text})
    first, second = (_in_utc(at.replace(tzinfo=spec.zone, fold=fold), text) for fold in (0, 1))
    if first == second:
        return first
    if second < first:  # in a skipped hour the two readings lie the wrong way round
        sentence = _("%(text)s does not exist in %(zone)s: the clock was set forward.")
        raise RowError(sentence % {"text": text, "zone": spec.zone.key})
    if spec.fold is None:
        sentence = _("%(text)s came twice in %(zone)s: the clock was set back. Say which of the two hours is meant.")
        raise RowError(sentence % {"text": text, "zone": spec.zone.key})
    return second if spec.fold else first


def _in_utc(at: datetime.datetime, text: str) -> datetime.datetime:
    try:
        return at.astimezone(datetime.UTC)
    except (OverflowError, ValueError):
        raise RowError(_("%(text)s is out of range.") % {"text": text}) from None


def written(at: datetime.datetime) -> str:
    """RFC 3339 in UTC."""
    return at.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")


def report_of(spec: ImportSpec, *, identity: str, body: dict[str, Any], told_at: datetime.datetime) -> dict[str, Any]:
    """The report of an imported row.

    Its ids follow from the contract, the row's identity and its content, so that a second import finds the same
    report, and a row that has changed meanwhile amends the same incident.
    """
    incident_id = uuid.uuid5(spec.contract_id, f"import:{spec.format}:{identity}")
    content = json.dumps(body, sort_keys=True)
    return {
        "schema_version": "1.0",
        "id": str(uuid.uuid5(incident_id, content)),
        "agent_id": f"import:{spec.format}",
        "boot_id": str(spec.contract_id),
        "seq": 1,
        "incident_id": str(incident_id),
        "sent_at": written(told_at),
        **body,
    }


def whole_number(text: str, name: str) -> int:
    """Raises RowError when `text` is none."""
    try:
        return int(text)
    except ValueError:
        sentence = _("%(field)s is “%(text)s”, not a whole number.")
        raise RowError(sentence % {"field": name, "text": text[:40]}) from None
