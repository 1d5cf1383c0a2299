"""A frozen statement: as a page, as PDF, and as the very bytes that its hash is of."""

import json
import math
import uuid
from typing import Any, TypeVar

from django import forms
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_GET

from yoco.accounts.models import Role
from yoco.core.buckets import Rate, local_buckets
from yoco.core.downloads import attachment
from yoco.guarantee.burndown import frozen_counts
from yoco.guarantee.labels import verdict_sentence, verdict_words
from yoco.guarantee.models import Statement
from yoco.guarantee.report import YearReport
from yoco.guarantee.restating import differences
from yoco.guarantee.selectors import report_of_summary, statement_ref, year_export
from yoco.guarantee.sharing import MAX_DAYS, shares_of
from yoco.portal.access import reader, year_in_url
from yoco.portal.budget import frozen_budget
from yoco.portal.documents import annex_of, changes_between, statement_csv, statement_pdf
from yoco.portal.graphics import gauge
from yoco.portal.selectors import is_member
from yoco.portal.words import share_words, threshold_words

# Of one person in one process: a document takes a processor for seconds.
PDF_RATE = Rate(per_second=0.5, burst=10)
R = TypeVar("R", HttpResponse, StreamingHttpResponse)


class ShareForm(forms.Form):
    """How long a link to a statement lasts."""

    days = forms.TypedChoiceField(
        label=gettext_lazy("The link lasts"),
        choices=lambda: [(n, ngettext("%(n)d day", "%(n)d days", n) % {"n": n}) for n in (7, 30, MAX_DAYS)],
        coerce=int,
        initial=30,
    )


def statement_in_url(
    request: HttpRequest,
    contract_id: uuid.UUID,
    year_id: uuid.UUID,
    revision: int,
    *,
    minimum: Role = Role.VIEWER,
) -> Statement:
    year = year_in_url(request, contract_id, year_id, minimum=minimum)
    statement = Statement.objects.select_related("terms").filter(year=year, revision=revision).first()
    if statement is None:
        raise Http404
    statement.year = year
    return statement


def report_of(statement: Statement) -> YearReport:
    """The figures that the statement froze."""
    assert statement.summary is not None, "every statement has the summary that it was written with"
    return report_of_summary(statement.summary, statement=statement_ref(statement), credit=None, restatement_due=False)


def context_of(statement: Statement) -> dict[str, Any]:
    """What page and PDF say alike."""
    year, report = statement.year, report_of(statement)
    before = Statement.objects.filter(year=year, revision=statement.revision - 1).first()
    latest = Statement.objects.filter(year=year).order_by("-revision").values_list("revision", flat=True).first()
    content = json.loads(statement.canonical)
    counts = frozen_counts(content["incidents"], year.contract.time_zone)
    return {
        "section": "reports",
        "contract": year.contract,
        "year": year,
        "statement": statement,
        "terms": statement.terms,
        "report": report,
        "required": share_words(report.threshold["num"], report.threshold["den"]),
        "credit_share": share_words(statement.terms.credit_rate_num, statement.terms.credit_rate_den),
        "verdict_words": verdict_words(report.verdict, closed=True),
        "verdict_reason": verdict_sentence(report.verdict_rule),
        **gauge_of(report),
        "budget": frozen_budget(year, counts, last=year.last_day, terms=statement.terms),
        "annex": annex_of(content),
        "before": before,
        "changes": changes_between(report_of(before), report) if before else [],
        "moved": differences(before.canonical, statement.canonical) if before else None,
        "latest": latest,
    }


def gauge_of(report: YearReport) -> dict[str, Any]:
    """What the gauge of a report needs."""
    mark = threshold_words(report.threshold["num"], report.threshold["den"])
    return {
        "gauge": gauge(
            resolved=report.resolved,
            counted=report.counted,
            pending=report.pending,
            threshold_num=report.threshold["num"],
            threshold_den=report.threshold["den"],
        ),
        "gauge_label": _("%(k)s of %(n)s failures resolved without loss; %(mark)s")
        % {"k": report.resolved, "n": report.counted, "mark": mark},
        "mark_words": mark,
    }


def too_many_documents(request: HttpRequest) -> HttpResponse | None:
    """What a person is told who asks for documents faster than a processor can make them."""
    wait = local_buckets().take(f"pdf:{reader(request).pk}", PDF_RATE)
    if not wait:
        return None
    busy = _("Too many documents at once. Try again in a few seconds.")
    headers = {"Retry-After": str(math.ceil(wait))}
    return HttpResponse(busy, status=429, content_type="text/plain; charset=utf-8", headers=headers)


@require_GET
@login_required
def statement_page(request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID, revision: int) -> HttpResponse:
    statement = statement_in_url(request, contract_id, year_id, revision)
    may_share = is_member(user=reader(request), contract=statement.year.contract)
    context = {
        **context_of(statement),
        "linked": True,
        "shares": shares_of(statement=statement),
        "share_form": ShareForm() if may_share else None,
    }
    return render(request, "portal/statement.html", context)


@require_GET
@login_required
def statement_as_pdf(request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID, revision: int) -> HttpResponse:
    statement = statement_in_url(request, contract_id, year_id, revision)
    if busy := too_many_documents(request):
        return busy
    response = HttpResponse(statement_pdf(context_of(statement)), content_type="application/pdf")
    return named(response, statement, "pdf")


@require_GET
@login_required
def statement_as_json(request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID, revision: int) -> HttpResponse:
    """Byte for byte what the hash is of, so that `sha256sum` proves it."""
    statement = statement_in_url(request, contract_id, year_id, revision)
    response = HttpResponse(statement.canonical.encode(), content_type="application/json")
    return named(response, statement, "json")


@require_GET
@login_required
def statement_as_csv(
    request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID, revision: int
) -> StreamingHttpResponse:
    statement = statement_in_url(request, contract_id, year_id, revision)
    response = StreamingHttpResponse(statement_csv(statement), content_type="text/csv; charset=utf-8")
    return named(response, statement, "csv")


@require_GET
@login_required
def export(request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID) -> HttpResponse:
    """Everything needed to recompute the year's share, as `tools/recompute.py` reads it."""
    year = year_in_url(request, contract_id, year_id)
    response = JsonResponse(year_export(year=year), json_dumps_params={"ensure_ascii": False, "indent": 1})
    return attachment(response, year.contract.number, "year", year.number, "export.json")


def named(response: R, statement: Statement, ending: str) -> R:
    """The response as a file named after the statement."""
    year = statement.year
    revision = f"{statement.revision}.{ending}"
    return attachment(response, year.contract.number, "year", year.number, "revision", revision)
