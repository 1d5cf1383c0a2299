"""Incidents of a contract year, and one incident with everything that was concluded from it."""

import json
import uuid
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, QueryDict, StreamingHttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from yoco.core.clock import milliseconds_between
from yoco.core.downloads import attachment
from yoco.guarantee.labels import CONDITIONS, reason_sentence, rule_sentence
from yoco.guarantee.models import Outcome
from yoco.guarantee.reviews import dispute_effect
from yoco.guarantee.selectors import incident_placement
from yoco.incidents.models import Decision, Kind, RawReport
from yoco.portal.access import incident_in_url, reader, year_in_url
from yoco.portal.analytics.waste import money_text
from yoco.portal.graphics import PHASES, phases
from yoco.portal.lists import incidents_csv, incidents_json
from yoco.portal.querying import choice_in, day_in
from yoco.portal.selectors import (
    COUNTED,
    IncidentFilter,
    event_of,
    incidents_by_day,
    incidents_filtered,
    incidents_page,
    is_member,
    reviews_of,
)
from yoco.portal.timeline import timeline_drawn
from yoco.portal.views.reviews import CommentForm
from yoco.portal.words import WASTE_TERMS, facts_in_order
from yoco.waste.model import IncidentWaste

# An objection of which somebody wants to know what upholding it does, or did.
LIVE = {Decision.PENDING, Decision.ACCEPTED}


def filter_of(query: QueryDict) -> IncidentFilter:
    """The filter that an address names."""
    return IncidentFilter(
        outcome=choice_in(query, "outcome", [COUNTED, *Outcome.values]),
        kind=choice_in(query, "kind", Kind.values),
        since=day_in(query, "since"),
        until=day_in(query, "until"),
        where=query.get("where", "").replace("\0", "").strip()[:200],
        once=query.get("once") == "1",
    )


@require_GET
@login_required
def incident_list(request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID) -> HttpResponse:
    """Newest first."""
    year = year_in_url(request, contract_id, year_id)
    wanted = filter_of(request.GET)
    newer, older = (
        incident_in_url(request, contract_id, request.GET[name]) if request.GET.get(name) else None
        for name in ("newer_than", "older_than")
    )
    page = incidents_page(contract=year.contract, year=year, wanted=wanted, newer_than=newer, older_than=older)
    context = {
        "section": "incidents",
        "contract": year.contract,
        "year": year,
        "page": page,
        **filter_choices(wanted),
    }
    return render(request, "portal/incidents.html", context)


def filter_choices(wanted: IncidentFilter) -> dict[str, object]:
    """What the form of the filters needs."""
    outcomes = [(COUNTED, _("In the ratio")), *Outcome.choices]
    return {"wanted": wanted, "outcomes": outcomes, "kinds": Kind.choices}


@require_GET
@login_required
def incident_timeline(request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID) -> HttpResponse:
    """The list on a time axis, under the same filters."""
    year = year_in_url(request, contract_id, year_id)
    wanted = filter_of(request.GET)
    today = timezone.now().astimezone(ZoneInfo(year.contract.time_zone)).date()
    context = {
        "section": "incidents",
        "contract": year.contract,
        "year": year,
        "timeline": timeline_drawn(
            incidents_by_day(contract=year.contract, year=year, wanted=wanted),
            first=max(year.starts_on, wanted.since or year.starts_on),
            last=min(year.last_day, wanted.until or year.last_day, today),
        ),
        "list_url": reverse("portal:incidents", args=[contract_id, year_id]),
        **filter_choices(wanted),
    }
    return render(request, "portal/timeline.html", context)


@require_GET
@login_required
def incident_file(request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID, kind: str) -> StreamingHttpResponse:
    """Exactly what the list shows under the same filter, all pages of it, the earliest first."""
    year = year_in_url(request, contract_id, year_id)
    rows = incidents_filtered(contract=year.contract, year=year, wanted=filter_of(request.GET))
    write, media_type = {
        "csv": (incidents_csv, "text/csv; charset=utf-8"),
        "json": (incidents_json, "application/json"),
    }[kind]
    response = StreamingHttpResponse(write(rows.order_by("started_at", "id")), content_type=media_type)
    return attachment(response, year.contract.number, "year", year.number, f"incidents.{kind}")


@require_GET
@login_required
def incident_detail(request: HttpRequest, contract_id: uuid.UUID, incident_id: uuid.UUID) -> HttpResponse:
    """The facts, where they placed the incident, and the reports they came from."""
    incident = incident_in_url(request, contract_id, incident_id)
    placed = incident_placement(incident=incident)
    placement = placed.placement if placed else None
    instants = {"started_at": incident.started_at} | {field: getattr(incident, field) for field, _ in PHASES}
    reports = RawReport.objects.filter(contract=incident.contract, incident_id=incident.public_id).order_by("id")
    conditions = [
        {
            "title": CONDITIONS[row["condition"]],
            "met": row["met"],
            "reason": reason_sentence(row["reason"]),
            "facts": facts_in_order(row["facts"]),
        }
        for row in (placement.evidence if placement else [])
    ]
    reviews = reviews_of(incident=incident)
    member = is_member(user=reader(request), contract=incident.contract)
    context = {
        "section": "incidents",
        "contract": incident.contract,
        "year": placement.year if placement else None,
        "incident": incident,
        "placement": placement,
        "outcome": placement.outcome if placement else Outcome.PENDING,
        "rule_words": rule_sentence(placement.rule) if placement else "",
        "conditions": conditions,
        "met_count": sum(condition["met"] for condition in conditions),
        "members": [member for member in placed.members if member.pk != incident.pk] if placed else [],
        "waste": placed.waste if placed else None,
        "waste_terms": waste_terms(placed.waste) if placed else [],
        "wasted_money": money_text(placed.waste.actual, incident.contract) if placed else "",
        "saved_money": money_text(placed.waste.saved, incident.contract) if placed else "",
        "phases": phases(instants),
        "total_ms": milliseconds_between(incident.started_at, incident.resumed_at),
        "reader_zone": timezone.get_current_timezone_name(),
        "event": event_of(incident=incident),
        "reviews": reviews,
        "disputes": [
            (row, dispute_effect(dispute=row, placement=placement) if placement and row.state in LIVE else "")
            for row in reviews.disputes
        ],
        "may_object": placement is not None and member,
        "comment_form": CommentForm() if member or reader(request).is_account_manager else None,
        "reports": [(report, pretty(report.body)) for report in reports],
    }
    return render(request, "portal/incident.html", context)


@dataclass(frozen=True, slots=True)
class WasteTerm:
    """One line of the sum: GPU-milliseconds as they were, and as they would have been without a migration."""

    name: str | Promise
    actual: int | None
    counterfactual: int | None
    estimated: bool


def waste_terms(waste: IncidentWaste) -> list[WasteTerm]:
    """The terms of both sums side by side, in the order of the formulas."""
    names = dict.fromkeys([*waste.terms, *waste.counterfactual_terms])
    return [
        WasteTerm(
            name=WASTE_TERMS.get(name, name),
            actual=waste.terms.get(name),
            counterfactual=waste.counterfactual_terms.get(name),
            estimated=name in waste.estimated,
        )
        for name in names
    ]


def pretty(body: str) -> str:
    """A report's JSON text with line breaks; nothing of it is left out or reordered."""
    return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
