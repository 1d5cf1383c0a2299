"""Incidents of a contract year, and one incident with everything that was concluded from it."""

import json
import uuid

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from yoco.guarantee.models import Outcome
from yoco.incidents.models import Kind, RawReport
from yoco.portal.access import incident_in_url, year_in_url
from yoco.portal.graphics import PHASES, phases
from yoco.portal.selectors import incidents_page


@require_GET
@login_required
def incident_list(request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID) -> HttpResponse:
    """Newest first. A filter value that does not exist is ignored, so that an old link still opens."""
    year = year_in_url(request, contract_id, year_id)
    outcome, kind = (
        value if value in choices else ""
        for value, choices in (
            (request.GET.get("outcome", ""), Outcome.values),
            (request.GET.get("kind", ""), Kind.values),
        )
    )
    newer, older = (
        incident_in_url(request, contract_id, request.GET[name]) if request.GET.get(name) else None
        for name in ("newer_than", "older_than")
    )
    page = incidents_page(
        contract=year.contract, year=year, outcome=outcome, kind=kind, newer_than=newer, older_than=older
    )
    context = {
        "contract": year.contract,
        "year": year,
        "page": page,
        "outcome": outcome,
        "kind": kind,
        "outcomes": Outcome.choices,
        "kinds": Kind.choices,
    }
    return render(request, "portal/incidents.html", context)


@require_GET
@login_required
def incident_detail(request: HttpRequest, contract_id: uuid.UUID, incident_id: uuid.UUID) -> HttpResponse:
    """The facts, where they placed the incident, and the reports they came from."""
    incident = incident_in_url(request, contract_id, incident_id)
    instants = {"started_at": incident.started_at} | {field: getattr(incident, field) for field, _ in PHASES}
    reports = [
        (report, json.dumps(json.loads(report.body), indent=2, ensure_ascii=False))
        for report in RawReport.objects.filter(contract=incident.contract, incident_id=incident.public_id).order_by("id")
    ]
    placement = getattr(incident, "placement", None)
    context = {
        "contract": incident.contract,
        "year": placement.year if placement else None,
        "incident": incident,
        "placement": placement,
        "phases": phases(instants),
        "reports": reports,
    }
    return render(request, "portal/incident.html", context)
