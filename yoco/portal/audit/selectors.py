"""Which entries of the audit log a reader sees, newest first."""

import datetime
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import islice

from django.db.models import Exists, F, OuterRef, Q, QuerySet

from yoco.accounts.models import Membership, Organisation
from yoco.core.clock import local_midnight
from yoco.core.models import AuditEntry
from yoco.portal.audit.words import OF_A_MEMBER, SENTENCES

PAGE_SIZE = 50
VENDOR, SYSTEM = "vendor", "system"


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """What a reader asked to see; empty means all. Days are the reader's, both included."""

    person: str = ""
    """VENDOR for any account manager, SYSTEM for what nobody asked for, or the id of a person."""
    kind: str = ""
    since: datetime.date | None = None
    until: datetime.date | None = None

    def __bool__(self) -> bool:
        return self != AuditFilter()


@dataclass(frozen=True, slots=True)
class Place:
    """Between which two entries a page begins: an entry's time and id, which no later entry changes."""

    at: datetime.datetime
    id: uuid.UUID

    @classmethod
    def parse(cls, text: str) -> "Place | None":
        """The place that an address names, or None."""
        at, _, key = text.partition("_")
        try:
            found = cls(datetime.datetime.fromisoformat(at), uuid.UUID(key))
        except ValueError:
            return None
        return found if found.at.tzinfo else None

    def __str__(self) -> str:
        return f"{self.at.astimezone(datetime.UTC).isoformat().replace('+00:00', 'Z')}_{self.id}"


@dataclass(frozen=True, slots=True)
class AuditPage:
    """One page; the places open the pages before and after it."""

    rows: list[AuditEntry]
    newer_than: str
    older_than: str


def entries_seen(*, organisation: Organisation | None, wanted: AuditFilter, zone: str) -> list[QuerySet[AuditEntry]]:
    """The entries of an organisation, or of all where there is none, as lists without an entry in common.

    An organisation's entries name it. Besides it sees how its members changed their sign-in while they were members.
    """
    rows = _filtered(AuditEntry.objects.select_related("actor"), wanted, zone)
    if organisation is None:
        return [rows]
    memberships = Membership.objects.filter(organisation=organisation)
    then = memberships.filter(
        Q(revoked_at=None) | Q(revoked_at__gt=OuterRef("at")), user=OuterRef("actor"), created_at__lte=OuterRef("at")
    )
    of_members = rows.filter(
        Exists(then),
        organisation_id=None,
        action__in=OF_A_MEMBER,
        actor__in=memberships.values("user"),
        subject_type="accounts.user",
    )
    return [rows.filter(organisation_id=organisation.pk), of_members]


def _filtered(rows: QuerySet[AuditEntry], wanted: AuditFilter, zone: str) -> QuerySet[AuditEntry]:
    if wanted.person == VENDOR:
        rows = rows.filter(actor__is_account_manager=True)
    elif wanted.person == SYSTEM:
        rows = rows.filter(actor=None)
    elif wanted.person:
        rows = rows.filter(actor=uuid.UUID(wanted.person))
    if wanted.kind:
        rows = rows.filter(action__in=SENTENCES[wanted.kind][1])
    if wanted.since:
        rows = rows.filter(at__gte=local_midnight(wanted.since, zone))
    if wanted.until:
        rows = rows.filter(at__lt=local_midnight(wanted.until + datetime.timedelta(days=1), zone))
    return rows


def audit_page(
    *, seen: list[QuerySet[AuditEntry]], newer_than: Place | None = None, older_than: Place | None = None
) -> AuditPage:
    """One page of what is seen. Its cost does not grow with the log: an index has each list in this order."""
    if newer_than is not None:
        after = [rows.filter(at__gte=newer_than.at).exclude(at=newer_than.at, pk__lte=newer_than.id) for rows in seen]
        found = list(islice(_merged(after, PAGE_SIZE + 1, newest_first=False), PAGE_SIZE + 1))
        more_newer, more_older = len(found) > PAGE_SIZE, True
        found = found[:PAGE_SIZE][::-1]
    else:
        if older_than is not None:
            seen = [
                rows.filter(at__lte=older_than.at).exclude(at=older_than.at, pk__gte=older_than.id) for rows in seen
            ]
        found = list(islice(_merged(seen, PAGE_SIZE + 1), PAGE_SIZE + 1))
        more_newer, more_older = older_than is not None, len(found) > PAGE_SIZE
        found = found[:PAGE_SIZE]
    return AuditPage(
        rows=found,
        newer_than=str(Place(found[0].at, found[0].pk)) if found and more_newer else "",
        older_than=str(Place(found[-1].at, found[-1].pk)) if found and more_older else "",
    )


def audit_all(*, seen: list[QuerySet[AuditEntry]]) -> Iterator[AuditEntry]:
    """Everything that is seen, read as it is needed."""
    return _merged(seen)


def _merged(
    seen: list[QuerySet[AuditEntry]], limit: int | None = None, *, newest_first: bool = True
) -> Iterator[AuditEntry]:
    order = ["-at", "-id"] if newest_first else ["at", "id"]
    parts = [rows.order_by(*order)[:limit].iterator(chunk_size=1000) for rows in seen]
    return merge(*parts, key=lambda row: (row.at, row.pk), reverse=newest_first)


def people_of(*, organisation: Organisation) -> list[Membership]:
    """Everyone who is or was a member, by name; each person once."""
    rows = (
        Membership.objects.filter(organisation=organisation)
        .select_related("user")
        .order_by("user__name", F("revoked_at").desc(nulls_first=True))
    )
    once = {row.user_id: row for row in reversed(rows)}
    return list(once.values())[::-1]
