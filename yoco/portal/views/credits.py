"""The customer's credits: what was granted, where it was used, what remains, as a statement of account."""

import datetime
import uuid

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from yoco.core.clock import local_midnight
from yoco.credits.selectors import account_statement, credit_balances, credits_of_contract
from yoco.guarantee.tally import years_synthetic
from yoco.portal.access import contract_in_url
from yoco.portal.selectors import year_current, years_of


@require_GET
@login_required
def credit_account(request: HttpRequest, contract_id: uuid.UUID) -> HttpResponse:
    """From the contract's first day until now."""
    contract = contract_in_url(request, contract_id)
    now = timezone.now()
    credits = list(credits_of_contract(contract=contract))
    balances = credit_balances(credits=credits)
    account = account_statement(
        contract=contract,
        start=local_midnight(contract.starts_on, contract.time_zone),
        end=now + datetime.timedelta(seconds=1),
    )
    context = {
        "section": "credits",
        "contract": contract,
        "year": year_current(years=years_of(contract=contract, at=now), at=now),
        "credits": [(credit, balances[credit.pk]) for credit in credits],
        "account": account,
        "synthetic_years": years_synthetic(year_ids=[credit.year_id for credit in credits]),
    }
    return render(request, "portal/credits.html", context)
