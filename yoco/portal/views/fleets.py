"""The analytics of several contracts together: of an organisation, and, for account managers, of all customers."""

import uuid
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from yoco.accounts.access import access_organisation, require_account_manager
from yoco.accounts.models import Organisation
from yoco.contracts.models import ContractYear
from yoco.guarantee.analytics.fleet_tables import fleet_tables
from yoco.guarantee.analytics.fleets import Fleet, years_of_fleet
from yoco.guarantee.analytics.jobs import fleet_found
from yoco.guarantee.models import AnalyticsJob
from yoco.guarantee.tally import years_size
from yoco.portal.access import reader
from yoco.portal.analytics import fleet
from yoco.portal.analytics.files import table_download

SPANS = (("running", _("Running years")), ("all", _("All years")))


@require_GET
@login_required
def of_organisation(request: HttpRequest, organisation_id: uuid.UUID) -> HttpResponse:
    """All contracts of an organisation."""
    organisation = access_organisation(reader(request), organisation_id)
    return _page(request, _years(request, organisation), {"organisation": organisation})


@require_GET
@login_required
def of_organisation_file(request: HttpRequest, organisation_id: uuid.UUID, code: str, kind: str) -> HttpResponse:
    """One table of an organisation's fleet as CSV or Parquet."""
    organisation = access_organisation(reader(request), organisation_id)
    return _file(request, _years(request, organisation), code, kind, organisation.slug)


@require_GET
@login_required
def of_all(request: HttpRequest) -> HttpResponse:
    """All customers; for account managers alone."""
    require_account_manager(reader(request))
    return _page(request, _years(request), {})


@require_GET
@login_required
def of_all_file(request: HttpRequest, code: str, kind: str) -> HttpResponse:
    """One table of all customers as CSV or Parquet."""
    require_account_manager(reader(request))
    return _file(request, _years(request), code, kind, "all-customers")


def _years(request: HttpRequest, organisation: Organisation | None = None) -> list[ContractYear]:
    years = ContractYear.objects.select_related("contract__organisation").order_by("contract__number", "number")
    if organisation is not None:
        years = years.filter(contract__organisation=organisation)
    return years_of_fleet(list(years), now=timezone.now(), all_years=request.GET.get("years") == "all")


def _page(request: HttpRequest, years: Sequence[ContractYear], more: dict[str, Any]) -> HttpResponse:
    every = request.GET.get("years") == "all"
    found = _found(years)
    job = found if isinstance(found, AnalyticsJob) else None
    exhibits = fleet.exhibits(found) if isinstance(found, Fleet) else []
    context = {
        "job": job,
        "as_of": found.scope.now if isinstance(found, Fleet) and found.incidents > settings.ANALYTICS_AT_ONCE else None,
        "section": "fleet",
        "exhibits": exhibits,
        "has_figures": any(exhibit.figure for exhibit in exhibits),
        "files_at": request.path,
        "given_query": "?years=all" if every else "",
        "spans": SPANS,
        "span": "all" if every else "running",
        **more,
    }
    status = HTTPStatus.ACCEPTED if job else HTTPStatus.OK
    return render(request, "portal/fleet.html", context, status=status)


def _found(years: Sequence[ContractYear]) -> Fleet | AnalyticsJob | None:
    if not years:
        return None
    incidents, _synthetic = years_size(year_ids=[year.pk for year in years])
    return fleet_found(years=years, incidents=incidents, now=timezone.now())


def _file(request: HttpRequest, years: Sequence[ContractYear], code: str, kind: str, source: str) -> HttpResponse:
    found = _found(years)
    if isinstance(found, AnalyticsJob):
        return redirect(f"./?{request.GET.urlencode()}")  # where the progress is
    table = fleet_tables(found).get(code) if found else None
    if table is None:
        raise Http404
    return table_download(table, kind, source)
