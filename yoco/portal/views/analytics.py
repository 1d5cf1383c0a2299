"""The analytics of a contract year: an overview, one page a topic, and the tables as files."""

import uuid
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from yoco.contracts.models import ContractYear
from yoco.guarantee.analytics.jobs import year_found
from yoco.guarantee.analytics.selectors import TOPICS, Given
from yoco.guarantee.models import AnalyticsJob
from yoco.guarantee.tally import years_size
from yoco.portal.access import year_in_url, years_in_url
from yoco.portal.analytics import goodput, rates, recovery, waste
from yoco.portal.analytics.files import table_download
from yoco.portal.selectors import years_begun

TITLES = {
    "rates": _("Failure rates"),
    "waste": _("Wasted GPU-hours"),
    "goodput": _("Goodput"),
    "recovery": _("Where it hurts"),
}
EXHIBITS = {
    "rates": rates.exhibits,
    "waste": waste.exhibits,
    "goodput": goodput.exhibits,
    "recovery": recovery.exhibits,
}


class GivenForm(forms.Form):
    """What nobody reports. The address holds it, so that a page can be sent on."""

    spare_nodes = forms.IntegerField(label=_("Idle spare nodes"), min_value=0, max_value=100_000, required=False)
    write_seconds = forms.DecimalField(
        label=_("Writing a checkpoint, seconds"), min_value=0, max_value=86_400, decimal_places=3, required=False
    )


FIELDS = {"waste": "spare_nodes", "goodput": "write_seconds"}


def _given(request: HttpRequest, topic: str) -> tuple[GivenForm | None, Given]:
    """The form of a topic that asks for something, and what a valid one says."""
    field = FIELDS.get(topic)
    if field is None:
        return None, Given()
    form = GivenForm(request.GET)
    for name in set(form.fields) - {field}:
        del form.fields[name]
    if not form.is_valid():
        return form, Given()
    seconds = form.cleaned_data.get("write_seconds")
    return form, Given(
        spare_nodes=form.cleaned_data.get("spare_nodes"), write_ms=None if seconds is None else round(seconds * 1000)
    )


def _context(year: ContractYear, years: list[ContractYear], topic: str) -> tuple[dict[str, Any], int]:
    """What every page of the analytics shows around its own, and the number of the year's incidents."""
    incidents, synthetic = years_size(year_ids=[year.pk])
    context = {
        "section": "analytics",
        "contract": year.contract,
        "year": year,
        "years": years_begun(years=years, at=timezone.now())[::-1],
        "synthetic": synthetic,
        "topic": topic,
        "topics": TITLES.items(),
        "topic_title": TITLES.get(topic, _("Analytics")),
    }
    return context, incidents


@require_GET
@login_required
def overview(request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID) -> HttpResponse:
    """The main sentence of each topic, with the way to its page."""
    year, years = years_in_url(request, contract_id, year_id)
    context, incidents = _context(year, years, "")
    found = year_found(year=year, topic="overview", given=Given(), incidents=incidents, now=timezone.now())
    if isinstance(found, AnalyticsJob):
        return render(request, "portal/analytics.html", {**context, "job": found}, status=HTTPStatus.ACCEPTED)
    assert found.rates is not None
    assert found.forecast is not None
    assert found.waste is not None
    assert found.benefit is not None
    assert found.goodput is not None
    said = {
        "rates": [
            rates.weekly_words(found.rates),
            rates.rate_words(found.rates),
            rates.mttf_words(found.rates),
            rates.forecast_words(found.forecast),
        ],
        "waste": [waste.waste_words(found.waste, found.benefit), waste.benefit_words(found.benefit)],
        "goodput": [goodput.goodput_words(found.goodput)],
        "recovery": [_("Causes, recovery times, parts that fail again and again, and a calendar.")],
    }
    summaries = [(code, title, said[code]) for code, title in TITLES.items()]
    context |= {"summaries": summaries, "as_of": found.scope.now if incidents > settings.ANALYTICS_AT_ONCE else None}
    return render(request, "portal/analytics.html", context)


@require_GET
@login_required
def topic_page(request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID, topic: str) -> HttpResponse:
    """The exhibits of one topic."""
    if topic not in TOPICS:
        raise Http404
    year, years = years_in_url(request, contract_id, year_id)
    form, given = _given(request, topic)
    context, incidents = _context(year, years, topic)
    found = year_found(year=year, topic=topic, given=given, incidents=incidents, now=timezone.now())
    if isinstance(found, AnalyticsJob):
        return render(request, "portal/analytics_topic.html", {**context, "job": found}, status=HTTPStatus.ACCEPTED)
    exhibits = EXHIBITS[topic](found)
    asked = {name: request.GET[name] for name in form.fields if request.GET.get(name)} if form else {}
    context |= {
        "as_of": found.scope.now if incidents > settings.ANALYTICS_AT_ONCE else None,
        "exhibits": exhibits,
        "has_figures": any(exhibit.figure for exhibit in exhibits),
        "files_at": request.path,
        "form": form,
        "scenario_query": rates.scenario_query(found),
        "given_query": f"?{urlencode(asked)}" if asked else "",
    }
    return render(request, "portal/analytics_topic.html", context)


@require_GET
@login_required
def table_as_csv(
    request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID, topic: str, code: str
) -> HttpResponse:
    """One table as CSV."""
    return _download(request, contract_id, year_id, topic, code, "csv")


@require_GET
@login_required
def table_as_parquet(
    request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID, topic: str, code: str
) -> HttpResponse:
    """One table as Parquet."""
    return _download(request, contract_id, year_id, topic, code, "parquet")


def _download(
    request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID, topic: str, code: str, kind: str
) -> HttpResponse:
    if topic not in TOPICS:
        raise Http404
    year = year_in_url(request, contract_id, year_id)
    _form, given = _given(request, topic)
    incidents, _synthetic = years_size(year_ids=[year.pk])
    found = year_found(year=year, topic=topic, given=given, incidents=incidents, now=timezone.now())
    if isinstance(found, AnalyticsJob):
        page = reverse("portal:analytics_topic", args=[contract_id, year_id, topic])
        return redirect(f"{page}?{request.GET.urlencode()}")  # where the progress is
    table = found.tables.get(code)
    if table is None:
        raise Http404
    return table_download(table, kind, f"{year.contract.number}-year-{year.number}")
