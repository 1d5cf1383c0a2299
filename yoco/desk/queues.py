"""What waits for somebody at the desk: queues, each the longest waiting first, paged by key."""

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import Count, Exists, Min, OuterRef, Q, QuerySet, Subquery, Value
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from yoco.accounts.models import User
from yoco.contracts.models import ContractYear, YearState
from yoco.core.templatetags.formats import day
from yoco.credits.models import Credit, CreditState
from yoco.guarantee.labels import restatement_because
from yoco.guarantee.models import Outcome, Placement, Proposal, RestatementDue
from yoco.incidents.models import Comment, Decision, Dispute, Exclusion, Incident, RegroupingProposal

PAGE_SIZE = 50


@dataclass(frozen=True, slots=True)
class Line:
    """One that waits: where it is decided, whose it is, and what is known about it."""

    url: str
    title: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Rows that wait, with the field that says since when, and how a row reads."""

    title: str | Promise
    empty: str | Promise
    rows: Callable[[], QuerySet[Any]]
    since: str
    line: Callable[[Any], Line]


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many wait in a queue, and since when the first of them."""

    name: str
    title: str | Promise
    n: int
    since: datetime.datetime | None


@dataclass(frozen=True, slots=True)
class QueuePage:
    """A stretch of a queue. `after` continues it; empty at its end."""

    lines: list[tuple[Line, datetime.datetime]]
    after: str


def waiting(*, reader: User) -> list[Waiting]:
    """Every queue with its length and its longest wait, in one query: subqueries beside the row of who reads them."""
    asked: dict[str, Any] = {}
    for place, queue in enumerate(QUEUES.values()):
        one = queue.rows().order_by().annotate(all_=Value(1)).values("all_")
        asked[f"n{place}"] = Subquery(one.annotate(n_=Count("pk")).values("n_"))
        asked[f"since{place}"] = Subquery(one.annotate(since_=Min(queue.since)).values("since_"))
    found: Any = User.objects.filter(pk=reader.pk).values(**asked).get()
    return [
        Waiting(name, queue.title, found[f"n{place}"] or 0, found[f"since{place}"])
        for place, (name, queue) in enumerate(QUEUES.items())
    ]


def queue_page(queue: Queue, *, after: str = "") -> QueuePage:
    """The rows that come after the key of a row shown before; from the first where there is no such key."""
    rows = queue.rows().order_by(queue.since, "pk")
    key = _key(rows, after)
    if key is not None:
        since, pk = key
        rows = rows.filter(Q(**{f"{queue.since}__gt": since}) | Q(**{queue.since: since, "pk__gt": pk}))
    found = list(rows[: PAGE_SIZE + 1])
    shown = found[:PAGE_SIZE]
    more = f"{getattr(shown[-1], queue.since).isoformat()}~{shown[-1].pk}" if len(found) > PAGE_SIZE else ""
    return QueuePage([(queue.line(row), getattr(row, queue.since)) for row in shown], more)


def _key(rows: QuerySet[Any], after: str) -> tuple[datetime.datetime, Any] | None:
    since, _tilde, pk = after.partition("~")
    try:
        at = datetime.datetime.fromisoformat(since)
        key = rows.model._meta.pk.to_python(pk)
    except (ValueError, OverflowError, ValidationError):
        return None
    return (at, key) if at.tzinfo is not None and key is not None else None


def _joined(*parts: object) -> str:
    return " · ".join(str(part) for part in parts if part)


def _year(year: ContractYear) -> str:
    return _joined(year.contract.number, _("Year %(number)s") % {"number": year.number})


def _incident(incident: Incident) -> str:
    return _joined(incident.contract.number, incident.run)


def _incident_url(incident: Incident, anchor: str = "") -> str:
    return reverse("portal:incident", args=[incident.contract_id, incident.public_id]) + anchor


def _credits(**chosen: Any) -> QuerySet[Credit]:
    return Credit.objects.filter(**chosen).select_related("year__contract__organisation", "issued_by")


def _credit_line(credit: Credit) -> Line:
    by = _("issued by %(person)s") % {"person": credit.issued_by} if credit.issued_by else ""
    organisation = credit.year.contract.organisation.name
    return Line(reverse("desk:credit", args=[credit.pk]), _year(credit.year), _joined(organisation, by))


def _years_closing() -> QuerySet[ContractYear]:
    return ContractYear.objects.filter(state=YearState.CLOSING).select_related("contract__organisation")


def _year_line(year: ContractYear) -> Line:
    ended = _("ended %(day)s; late reports still count") % {"day": day(year.last_day)}
    url = reverse("portal:year", args=[year.contract_id, year.pk])
    return Line(url, _year(year), _joined(year.contract.organisation.name, ended))


def _restatements_due() -> QuerySet[RestatementDue]:
    return RestatementDue.objects.select_related("year__contract__organisation")


def _restatement_line(due: RestatementDue) -> Line:
    url = reverse("desk:restate", args=[due.year.contract_id, due.year_id])
    return Line(url, _year(due.year), restatement_because(", ".join(due.reasons)))


def _proposals() -> QuerySet[Proposal]:
    return Proposal.objects.filter(state=Decision.PENDING).select_related("contract", "proposed_by")


def _disputes() -> QuerySet[Dispute]:
    return Dispute.objects.filter(state=Decision.PENDING).select_related(
        "incident__contract", "incident__run", "raised_by"
    )


def _exclusions() -> QuerySet[Exclusion]:
    return Exclusion.objects.filter(state=Decision.PENDING).select_related(
        "incident__contract", "incident__run", "proposed_by"
    )


def _regroupings() -> QuerySet[RegroupingProposal]:
    return RegroupingProposal.objects.filter(state=Decision.PENDING).select_related("contract", "proposed_by")


def _comments() -> QuerySet[Comment]:
    """What customers wrote last on an incident, if no account manager has written after it."""
    later = Comment.objects.filter(incident=OuterRef("incident"), id__gt=OuterRef("id"))
    rows = Comment.objects.filter(~Exists(later), by_desk=False)
    return rows.select_related("incident__contract", "incident__run", "by")


def _unaccounted() -> QuerySet[Placement]:
    """Workloads that went silent in a year that is not closed: somebody should ask the customer."""
    rows = Placement.objects.filter(outcome=Outcome.UNACCOUNTED, lead=True).exclude(year__state=YearState.CLOSED)
    return rows.select_related("incident__contract", "incident__run").defer("evidence", "waste_terms")


# By the name in the address, in the order in which the portfolio lists them.
QUEUES: dict[str, Queue] = {
    "credits-to-issue": Queue(
        title=gettext_lazy("Credits to issue"),
        empty=gettext_lazy("No credit waits to be issued."),
        rows=lambda: _credits(state=CreditState.PROPOSED),
        since="proposed_at",
        line=_credit_line,
    ),
    "credits-to-approve": Queue(
        title=gettext_lazy("Credits to approve"),
        empty=gettext_lazy("No credit waits for a second person."),
        rows=lambda: _credits(state=CreditState.ISSUED),
        since="issued_at",
        line=_credit_line,
    ),
    "credits-to-settle": Queue(
        title=gettext_lazy("Credits to settle"),
        empty=gettext_lazy("No credit is in question."),
        rows=lambda: _credits(review_since__isnull=False),
        since="review_since",
        line=_credit_line,
    ),
    "proposals": Queue(
        title=gettext_lazy("Restatements, terms and ends to confirm"),
        empty=gettext_lazy("No proposal waits for a second person."),
        rows=_proposals,
        since="proposed_at",
        line=lambda row: Line(
            reverse("desk:proposal", args=[row.pk]),
            _joined(row.contract.number, row.get_kind_display()),
            str(row.proposed_by),
        ),
    ),
    "disputes": Queue(
        title=gettext_lazy("Open disputes"),
        empty=gettext_lazy("No customer disputes an incident."),
        rows=_disputes,
        since="raised_at",
        line=lambda row: Line(reverse("desk:dispute", args=[row.pk]), _incident(row.incident), str(row.raised_by)),
    ),
    "exclusions": Queue(
        title=gettext_lazy("Exclusions to decide"),
        empty=gettext_lazy("No exclusion waits for a second person."),
        rows=_exclusions,
        since="proposed_at",
        line=lambda row: Line(
            reverse("desk:exclusion", args=[row.pk]),
            _incident(row.incident),
            _joined(row.get_reason_display(), row.proposed_by),
        ),
    ),
    "regroupings": Queue(
        title=gettext_lazy("Regroupings to decide"),
        empty=gettext_lazy("No regrouping waits for a second person."),
        rows=_regroupings,
        since="proposed_at",
        line=lambda row: Line(
            reverse("desk:regrouping", args=[row.pk]),
            _joined(row.contract.number, row.get_action_display()),
            str(row.proposed_by),
        ),
    ),
    "comments": Queue(
        title=gettext_lazy("Comments to answer"),
        empty=gettext_lazy("Every comment of a customer is answered."),
        rows=_comments,
        since="at",
        line=lambda row: Line(_incident_url(row.incident, f"#comment-{row.pk}"), _incident(row.incident), str(row.by)),
    ),
    "unaccounted": Queue(
        title=gettext_lazy("Gone silent"),
        empty=gettext_lazy("Every workload has said how it ended."),
        rows=_unaccounted,
        since="started_at",
        line=lambda row: Line(_incident_url(row.incident), _incident(row.incident), row.incident.node),
    ),
    "years-to-close": Queue(
        title=gettext_lazy("Years to close"),
        empty=gettext_lazy("No year waits for late reports."),
        rows=_years_closing,
        since="ends_at",
        line=_year_line,
    ),
    "restatements-due": Queue(
        title=gettext_lazy("Restatements due"),
        empty=gettext_lazy("Every statement says what the facts say."),
        rows=_restatements_due,
        since="since",
        line=_restatement_line,
    ),
}
