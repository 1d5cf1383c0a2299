"""The reports of a contract year: its statement, and the monthly snapshots, each as a page and as files."""

import json
import uuid
from typing import Any, TypeVar

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_GET

from yoco.core.downloads import attachment
from yoco.core.templatetags.formats import day, when_text
from yoco.guarantee.models import Snapshot, Statement
from yoco.guarantee.snapshots import snapshot_days, snapshot_report
from yoco.incidents.models import Decision
from yoco.portal.access import year_in_url, years_in_url
from yoco.portal.budget import frozen_budget
from yoco.portal.documents import annex_of, changes_between, changes_named, snapshot_csv, snapshot_pdf
from yoco.portal.selectors import years_begun
from yoco.portal.views.statements import gauge_of, too_many_documents

R = TypeVar("R", HttpResponse, StreamingHttpResponse)


@require_GET
@login_required
def reports(request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID) -> HttpResponse:
    """What has been frozen of a contract year, the latest first."""
    year, years = years_in_url(request, contract_id, year_id)
    context = {
        "section": "reports",
        "contract": year.contract,
        "year": year,
        "years": years_begun(years=years, at=timezone.now())[::-1],
        "statements": Statement.objects.filter(year=year).defer("canonical", "summary").order_by("-revision"),
        "snapshots": Snapshot.objects.filter(year=year).defer("canonical").order_by("-number"),
    }
    return render(request, "portal/reports.html", context)


def snapshot_in_url(request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID, number: int) -> Snapshot:
    year = year_in_url(request, contract_id, year_id)
    snapshot = get_object_or_404(Snapshot.objects.select_related("terms"), year=year, number=number)
    snapshot.year = year
    return snapshot


def context_of(snapshot: Snapshot) -> dict[str, Any]:
    """What page and PDF say alike."""
    year, report, content = snapshot.year, snapshot_report(snapshot), json.loads(snapshot.canonical)
    before = Snapshot.objects.filter(year=year, number=snapshot.number - 1).defer("canonical").first()
    return {
        "section": "reports",
        "contract": year.contract,
        "year": year,
        "snapshot": snapshot,
        "terms": snapshot.terms,
        "report": report,
        **gauge_of(report),
        "over": -report.failures_still_allowed,
        "provisional_words": _(
            "Provisional: the figures of the contract year up to %(day)s, as they were known when this was made. "
            "A snapshot decides nothing; the verdict stands in the statement, once the year has closed."
        )
        % {"day": day(snapshot.last_day)},
        "late_words": late_words(snapshot),
        "budget": frozen_budget(year, snapshot_days(content), last=snapshot.last_day, terms=snapshot.terms),
        "before": before,
        "changes": changes_between(snapshot_report(before), report) if before else [],
        "named": changes_named(content),
        "disputes": [(row, Decision(row["state"]).label) for row in content["disputes"]],
        "annex": annex_of({"incidents": [row for row in content["incidents"] if row["change"] == "new"]}),
    }


def late_words(snapshot: Snapshot) -> str:
    """That it was made late, and as of when; nothing for one made in time."""
    if not snapshot.late:
        return ""
    zone = snapshot.year.contract.time_zone
    hours = int((snapshot.created_at - snapshot.ends_at).total_seconds()) // 3600
    after = (
        ngettext("%(n)d day", "%(n)d days", hours // 24) % {"n": hours // 24}
        if hours >= 24
        else ngettext("%(n)d hour", "%(n)d hours", hours) % {"n": hours}
    )
    return _(
        "Made late: on %(made)s (%(zone)s), %(after)s after the month had ended. It counts what began by %(day)s, as "
        "the facts stood when it was made."
    ) % {
        "made": when_text(snapshot.created_at, zone),
        "zone": zone,
        "after": after,
        "day": day(snapshot.last_day),
    }


@require_GET
@login_required
def snapshot_page(request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID, number: int) -> HttpResponse:
    snapshot = snapshot_in_url(request, contract_id, year_id, number)
    return render(request, "portal/snapshot.html", {**context_of(snapshot), "linked": True})


@require_GET
@login_required
def snapshot_as_pdf(request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID, number: int) -> HttpResponse:
    snapshot = snapshot_in_url(request, contract_id, year_id, number)
    if busy := too_many_documents(request):
        return busy
    return _named(HttpResponse(snapshot_pdf(context_of(snapshot)), content_type="application/pdf"), snapshot, "pdf")


@require_GET
@login_required
def snapshot_as_json(request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID, number: int) -> HttpResponse:
    """Byte for byte what the hash is of."""
    snapshot = snapshot_in_url(request, contract_id, year_id, number)
    return _named(HttpResponse(snapshot.canonical.encode(), content_type="application/json"), snapshot, "json")


@require_GET
@login_required
def snapshot_as_csv(
    request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID, number: int
) -> StreamingHttpResponse:
    snapshot = snapshot_in_url(request, contract_id, year_id, number)
    response = StreamingHttpResponse(snapshot_csv(snapshot), content_type="text/csv; charset=utf-8")
    return _named(response, snapshot, "csv")


def _named(response: R, snapshot: Snapshot, ending: str) -> R:
    """The response as a file named after the snapshot."""
    year = snapshot.year
    return attachment(response, year.contract.number, "year", year.number, "month", f"{snapshot.number}.{ending}")
