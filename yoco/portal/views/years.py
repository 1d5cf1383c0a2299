"""A contract year: its verdict, in words and in numbers, and everything the numbers open."""

import datetime
import uuid

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from yoco.contracts.models import YearState
from yoco.contracts.selectors import year_terms
from yoco.guarantee.labels import verdict_sentence
from yoco.guarantee.models import Statement, Verdict
from yoco.guarantee.selectors import year_report
from yoco.incidents.models import Kind
from yoco.portal.access import year_in_url
from yoco.portal.graphics import gauge
from yoco.portal.selectors import days_until, years_of
from yoco.portal.words import verdict_words


@require_GET
@login_required
def year_detail(request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID) -> HttpResponse:
    """The Guarantee page of one contract year."""
    year = year_in_url(request, contract_id, year_id)
    report = year_report(year=year)
    terms = year_terms(year=year)
    closed = year.state == YearState.CLOSED
    threshold = report.threshold
    mark = threshold_words(threshold["num"], threshold["den"])
    context = {
        "section": "guarantee",
        "contract": year.contract,
        "year": year,
        "years": years_of(contract=year.contract),
        "last_day": year.ends_on - datetime.timedelta(days=1),
        "report": report,
        "terms": terms,
        "revisions": Statement.objects.filter(year=year).defer("canonical", "summary").order_by("-revision"),
        "verdict_words": verdict_words(report.verdict, closed=closed),
        "verdict_reason": verdict_sentence(report.verdict_rule),
        "tone": {Verdict.MET: "met", Verdict.NO_FAILURES: "met", Verdict.SHORT: "short"}.get(report.verdict, "undecided"),
        "gauge": gauge(
            resolved=report.resolved,
            counted=report.counted,
            pending=report.pending,
            threshold_num=threshold["num"],
            threshold_den=threshold["den"],
        ),
        "gauge_label": _("%(k)s of %(n)s failures resolved without loss; %(mark)s")
        % {"k": report.resolved, "n": report.counted, "mark": mark},
        "mark_words": mark,
        "over": -report.failures_still_allowed,
        "single_miss": report.counted * (threshold["den"] - threshold["num"]) < threshold["den"],
        "days_left": days_until(day=year.ends_on, time_zone=year.contract.time_zone, at=timezone.now()),
        "by_kind": [(label, kind, report.by_kind[kind]) for kind, label in Kind.choices if kind in report.by_kind],
        "incidents_url": reverse("portal:incidents", args=[year.contract_id, year.pk]),
    }
    return render(request, "portal/year.html", context)


def threshold_words(num: int, den: int) -> str:
    """The threshold in per cent, or as the fraction of the terms where per cent would be rounded."""
    if num * 100 % den == 0:
        return _("%(percent)s %% required") % {"percent": num * 100 // den}
    return _("%(num)s of %(den)s required") % {"num": num, "den": den}
