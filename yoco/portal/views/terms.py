"""What is promised under a contract: the terms in force, and every version with what it changed."""

import uuid

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from yoco.contracts.models import GuaranteeTerms
from yoco.contracts.words import terms_changes, terms_rows, terms_versions
from yoco.credits.selectors import local_date
from yoco.portal.access import contract_in_url


@require_GET
@login_required
def contract_terms(request: HttpRequest, contract_id: uuid.UUID) -> HttpResponse:
    """The version in force today in the contract's zone; before the first takes effect, the first.

    `?from=1&to=3` shows what differs between any two versions; without them, the first and the latest.
    """
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
        **_compared(request, [version.terms for version in versions]),
    }
    return render(request, "portal/terms.html", context)


def _compared(request: HttpRequest, terms: list[GuaranteeTerms]) -> dict[str, object]:
    """The two versions that the address names, of versions with the latest first, and what differs between them."""
    if len(terms) < 2:
        return {}
    by_version = {str(one.version): one for one in terms}
    before = by_version.get(request.GET.get("from", ""), terms[-1])
    after = by_version.get(request.GET.get("to", ""), terms[0])
    return {"before": before, "after": after, "differences": terms_changes(before, after)}
