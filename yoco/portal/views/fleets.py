"""The analytics of several contracts together: of an organisation, and, for account managers, of all customers."""

import uuid
from collections.abc import Sequence
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from yoco.accounts.access import access_organisation, require_account_manager
from yoco.accounts.models import Organisation
from yoco.contracts.models import ContractYear
from yoco.guarantee.analytics.fleet_tables import fleet_tables
from yoco.guarantee.analytics.fleets import fleet_of, years_of_fleet
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
    return _file(_years(request, organisation), code, kind, organisation.slug)


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
    return _file(_years(request), code, kind, "all-customers")


def _years(request: HttpRequest, organisation: Organisation | None = None) -> list[ContractYear]:
    years = ContractYear.objects.select_related("contract__organisation").order_by("contract__number", "number")
    if organisation is not None:
        years = years.filter(contract__organisation=organisation)
    return years_of_fleet(list(years), now=timezone.now(), all_years=request.GET.get("years") == "all")


def _page(request: HttpRequest, years: Sequence[ContractYear], more: dict[str, Any]) -> HttpResponse:
    exhibits = fleet.exhibits(fleet_of(years=years, now=timezone.now())) if years else []
    every = request.GET.get("years") == "all"
    context = {
        "section": "fleet",
        "exhibits": exhibits,
        "has_figures": any(exhibit.figure for exhibit in exhibits),
        "files_at": request.path,
        "given_query": "?years=all" if every else "",
        "spans": SPANS,
        "span": "all" if every else "running",
        **more,
    }
    return render(request, "portal/fleet.html", context)


def _file(years: Sequence[ContractYear], code: str, kind: str, source: str) -> HttpResponse:
    table = fleet_tables(fleet_of(years=years, now=timezone.now())).get(code) if years else None
    if table is None:
        raise Http404
    return table_download(table, kind, source)
