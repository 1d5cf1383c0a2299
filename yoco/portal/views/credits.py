"""The customer's credits: what was granted, where it was used, what remains, as a statement of account."""

import datetime
import uuid

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from yoco.contracts.models import Contract
from yoco.core.clock import local_midnight
from yoco.core.downloads import attachment
from yoco.credits.export import account_statement_csv, ledger_export
from yoco.credits.selectors import AccountStatement, account_statement, credit_balances, credits_of_contract
from yoco.guarantee.tally import years_synthetic
from yoco.portal.access import contract_in_url
from yoco.portal.selectors import year_current, years_of


def account_until_now(contract: Contract) -> AccountStatement:
    """The statement of account from the contract's first day."""
    return account_statement(
        contract=contract,
        start=local_midnight(contract.starts_on, contract.time_zone),
        end=timezone.now() + datetime.timedelta(seconds=1),
    )


@require_GET
@login_required
def credit_account(request: HttpRequest, contract_id: uuid.UUID) -> HttpResponse:
    """From the contract's first day until now."""
    contract = contract_in_url(request, contract_id)
    now = timezone.now()
    credits = list(credits_of_contract(contract=contract))
    balances = credit_balances(credits=credits)
    account = account_until_now(contract)
    context = {
        "section": "credits",
        "contract": contract,
        "year": year_current(years=years_of(contract=contract, at=now), at=now),
        "credits": [(credit, balances[credit.pk]) for credit in credits],
        "account": account,
        "synthetic_years": years_synthetic(year_ids=[credit.year_id for credit in credits]),
    }
    return render(request, "portal/credits.html", context)


@require_GET
@login_required
def credit_account_csv(request: HttpRequest, contract_id: uuid.UUID) -> HttpResponse:
    """The same statement of account for a spreadsheet."""
    contract = contract_in_url(request, contract_id)
    text = account_statement_csv(statement=account_until_now(contract))
    response = HttpResponse(text, content_type="text/csv; charset=utf-8")
    return attachment(response, contract.number, "account.csv")


@require_GET
@login_required
def ledger_json(request: HttpRequest, contract_id: uuid.UUID) -> HttpResponse:
    """The whole ledger of a contract as it is hashed, for people who check the chain themselves (docs/ledger.md)."""
    contract = contract_in_url(request, contract_id)
    response = JsonResponse(ledger_export(contract=contract), json_dumps_params={"ensure_ascii": False, "indent": 1})
    return attachment(response, contract.number, "ledger.json")
