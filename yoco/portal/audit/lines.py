"""Entries of the audit log in words, for the page and for a file."""

import csv
import datetime
import io
import json
import uuid
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.utils import timezone, translation
from django.utils.translation import gettext as _

from yoco.accounts.models import Role, User
from yoco.contracts.models import ExclusionReason
from yoco.core.downloads import cell
from yoco.core.models import AuditEntry
from yoco.core.money import Money
from yoco.core.templatetags.formats import NOT_RECORDED, day, number, reader_locale
from yoco.guarantee.labels import restatement_because
from yoco.portal.audit.subjects import Known, Subject, known_of, subject_of
from yoco.portal.audit.words import SENTENCE, UNKNOWN

COLUMNS = (
    "id",
    "at",
    "organisation",
    "who",
    "action",
    "what",
    "subject_type",
    "subject_id",
    "subject",
    "reason",
    "data",
)
CHUNK = 500
ONE_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Line:
    """One entry as a reader sees it; `who` is empty where nobody asked for it."""

    entry: AuditEntry
    who: str
    what: str
    reason: str
    subject: Subject


class _Details(dict[str, str]):
    """A detail that an older entry does not have shows as a dash."""

    def __missing__(self, name: str) -> str:
        return NOT_RECORDED


def lines_of(*, entries: Collection[AuditEntry], people: Collection[User], desk: bool) -> list[Line]:
    """The entries in words. `people` are those at hand, so that no query looks for them."""
    known = known_of(entries=entries, people=people)
    return [
        Line(
            entry=entry,
            who=str(entry.actor) if entry.actor else "",
            what=str(SENTENCE.get(entry.action, UNKNOWN)) % _details(entry, known),
            reason=_reason(entry),
            subject=subject_of(entry, known, desk=desk),
        )
        for entry in entries
    ]


def _details(entry: AuditEntry, known: Known) -> _Details:
    data = entry.data
    said = _Details(action=entry.action)
    for name, value in data.items():
        said[name] = _in_words(entry, name, value)
    if "user" in data:
        said["person"] = str(known.people.get(uuid.UUID(data["user"]), NOT_RECORDED))
    if entry.subject_type == "accounts.invitation":
        said["address"] = known.addresses.get(uuid.UUID(entry.subject_id), NOT_RECORDED)
    currency = _currency(entry, known)
    for name, source in (("amount", "minor"), ("amount", "amount_minor"), ("fees", "fees_minor")):
        if currency and isinstance(data.get(source), int):
            said[name] = Money(data[source], currency).format(reader_locale())
    if currency and "fees" in said and isinstance(data.get("before"), int):
        said["before"] = Money(data["before"], currency).format(reader_locale())
    return said


def _in_words(entry: AuditEntry, name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return NOT_RECORDED
    if isinstance(value, int):
        return number(value)
    if value in Role.values and name in ("role", "before"):
        return str(Role(value).label)
    try:
        if name in ("effective_on", "guarantee_from"):
            return day(datetime.date.fromisoformat(value))
        if entry.action == "contract.ended_early" and name in ("ends_on", "before"):
            return day(datetime.date.fromisoformat(value) - ONE_DAY)  # kept as the first day after
        if name == "expires_at":
            return day(timezone.localtime(datetime.datetime.fromisoformat(value)).date())
    except ValueError:
        return value
    return value


def _currency(entry: AuditEntry, known: Known) -> str:
    if "currency" in entry.data:
        return str(entry.data["currency"])
    year = (
        known.years.get(uuid.UUID(entry.subject_id))
        if entry.subject_type in ("credits.credit", "contracts.contractyear")
        else None
    )
    return year.currency if year else ""


def _reason(entry: AuditEntry) -> str:
    """Why, as far as the entry says it: a ground, and what a person wrote."""
    data = entry.data
    ground = data.get("reason", "")
    if entry.action == "year.restated":
        ground = restatement_because(ground)
    if ground in ExclusionReason.values:
        ground = str(ExclusionReason(ground).label)
    if data.get("because") == "failing":
        ground = _("It answered with errors for too long.")
    written = data.get("note") or data.get("text") or ""
    return ": ".join(str(part) for part in (ground, written) if part)


def audit_csv(
    entries: Iterable[AuditEntry], *, organisations: dict[uuid.UUID, str], desk: bool, language: str
) -> Iterator[str]:
    """A header, then one line for each entry; times are UTC, and no text can be taken for a formula."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\r\n")
    writer.writeheader()
    rest = iter(entries)
    while part := list(islice(rest, CHUNK)):
        with translation.override(language):  # the reader's, which has gone once a file is sent
            for line in lines_of(entries=part, people=[], desk=desk):
                writer.writerow({name: cell(value) for name, value in _row(line, organisations).items()})
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()


def _row(line: Line, organisations: dict[uuid.UUID, str]) -> dict[str, Any]:
    entry = line.entry
    return {
        "id": str(entry.pk),
        "at": entry.at.isoformat().replace("+00:00", "Z"),
        "organisation": organisations.get(entry.organisation_id, "") if entry.organisation_id else "",
        "who": line.who,
        "action": entry.action,
        "what": line.what,
        "subject_type": entry.subject_type,
        "subject_id": entry.subject_id,
        "subject": line.subject.name,
        "reason": line.reason,
        "data": json.dumps(entry.data, ensure_ascii=False, sort_keys=True),
    }
