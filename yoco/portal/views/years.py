"""A contract year: its verdict, in words and in numbers, and everything the numbers open."""

import datetime
import uuid
from decimal import Decimal

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from yoco.contracts.models import GuaranteeTerms, YearState
from yoco.contracts.selectors import year_terms
from yoco.core.templatetags.formats import number
from yoco.guarantee.labels import INTERVALS, verdict_sentence, verdict_words
from yoco.guarantee.models import Statement
from yoco.guarantee.report import credit_words
from yoco.guarantee.selectors import year_burn_down, year_report
from yoco.guarantee.tally import report_with_interval
from yoco.incidents.models import Kind
from yoco.portal.access import years_in_url
from yoco.portal.budget import year_budget
from yoco.portal.selectors import days_until, freshness, years_begun
from yoco.portal.views.statements import gauge_of

TONES = {"met": "met", "no_failures": "met", "short": "short", "undecided": "undecided"}


@require_GET
@login_required
def year_detail(request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID) -> HttpResponse:
    """The Guarantee page of one contract year.

    `?interval=` names the method of the interval; an unknown one is Wilson's, so that an old link still opens.
    """
    year, years = years_in_url(request, contract_id, year_id)
    asked = request.GET.get("interval")
    method = next((known for known in INTERVALS if known == asked), "wilson")
    report = report_with_interval(year_report(year=year), method)
    terms = year_terms(year=year)
    now = timezone.now()
    closed = year.state == YearState.CLOSED
    threshold = report.threshold
    context = {
        "section": "guarantee",
        "contract": year.contract,
        "year": year,
        "years": years_begun(years=years, at=now)[::-1],
        "report": report,
        "terms": terms,
        "earlier_revisions": Statement.objects.filter(year=year, revision__lt=report.statement.revision)
        .defer("canonical", "summary")
        .order_by("-revision")
        if report.statement and report.statement.revision > 1
        else [],
        "verdict_words": verdict_words(report.verdict, closed=closed),
        "verdict_reason": verdict_sentence(report.verdict_rule),
        "tone": TONES[report.verdict],
        **gauge_of(report),
        "intervals": INTERVALS.items(),
        "interval_words": INTERVALS[method],
        "credit_words": credit_words(report.credit) if report.credit else "",
        "chance_short": chance_words(report.information.chance_of_ending_short),
        "over": -report.failures_still_allowed,
        "single_miss": report.counted * (threshold["den"] - threshold["num"]) < threshold["den"],
        "budget": year_budget(year, year_burn_down(year=year, terms=terms, as_of=now), until=_("Today"))
        if terms
        else None,
        "days_left": days_until(day=year.ends_on, time_zone=year.contract.time_zone, at=now),
        "fresh": None
        if closed or terms is None
        else freshness(contract=year.contract, window=silence_window(terms), at=now),
        "by_kind": [(label, kind, report.by_kind[kind]) for kind, label in Kind.choices if kind in report.by_kind],
        "incidents_url": reverse("portal:incidents", args=[year.contract_id, year.pk]),
    }
    return render(request, "portal/year.html", context)


def silence_window(terms: GuaranteeTerms) -> datetime.timedelta:
    """How long a run may be silent before that counts."""
    return datetime.timedelta(minutes=terms.silence_window_minutes)


def chance_words(chance: str | None) -> str:
    """A probability in whole per cent; never 0 or 100, which would promise what nobody can."""
    if chance is None:
        return ""
    value = Decimal(chance) * 100
    if value < 1:
        return _("below 1 %")
    if value > 99:
        return _("above 99 %")
    return f"{number(value)} %"
