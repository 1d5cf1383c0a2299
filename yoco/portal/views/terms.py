"""What is promised under a contract: the terms in force, and every version with what it changed."""

import uuid

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from yoco.contracts.words import terms_rows, terms_versions
from yoco.credits.selectors import local_date
from yoco.portal.access import contract_in_url


@require_GET
@login_required
def contract_terms(request: HttpRequest, contract_id: uuid.UUID) -> HttpResponse:
    """The version in force today in the contract's zone; before the first takes effect, the first."""
    contract = contract_in_url(request, contract_id)
    today = local_date(timezone.now(), contract.time_zone)
    versions = terms_versions(list(contract.terms.all()), today=today)
    shown = next((version for version in versions if version.in_force), versions[-1] if versions else None)
    context = {
        "section": "guarantee",
        "contract": contract,
        "versions": versions,
        "shown": shown,
        "rows": terms_rows(shown.terms) if shown else [],
    }
    return render(request, "portal/terms.html", context)
