"""The customer's credits: what was granted, where it was used, what remains, as a statement of account."""

import datetime
import uuid
from typing import Any

from django import forms
from django.contrib.auth.decorators import login_required
from django.core.validators import MaxValueValidator, MinValueValidator
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from yoco.contracts.models import Contract
from yoco.core.clock import FIRST_DAY, LAST_DAY, local_midnight
from yoco.core.downloads import attachment
from yoco.credits.export import account_statement_csv, ledger_export
from yoco.credits.selectors import AccountStatement, account_statement, credit_balances, credits_of_contract
from yoco.guarantee.tally import years_synthetic
from yoco.portal.access import contract_in_url
from yoco.portal.selectors import year_current, years_of

DAY: dict[str, Any] = {
    "required": False,
    "widget": forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d"),
    "validators": [MinValueValidator(FIRST_DAY), MaxValueValidator(LAST_DAY)],
}


class PeriodForm(forms.Form):
    """The days of a statement of account, both included; left empty, the contract's first day and this moment."""

    since = forms.DateField(label=_("From"), **DAY)
    until = forms.DateField(label=_("Until"), **DAY)

    def clean(self) -> dict[str, datetime.date | None]:
        days: dict[str, datetime.date | None] = super().clean() or {}
        since, until = days.get("since"), days.get("until")
        if since and until and until < since:
            self.add_error("until", _("The end of the statement lies before its start."))
        return days


def account_in_period(contract: Contract, form: PeriodForm) -> AccountStatement:
    """The statement of account for a form's period, in days of the contract; of all time where the form is wrong."""
    now = timezone.now() + datetime.timedelta(seconds=1)
    days = form.cleaned_data if form.is_valid() else {}
    since, until = days.get("since"), days.get("until")
    start = local_midnight(since or contract.starts_on, contract.time_zone)
    end = local_midnight(until + datetime.timedelta(days=1), contract.time_zone) if until else max(now, start)
    return account_statement(contract=contract, start=start, end=max(start, end))


@require_GET
@login_required
def credit_account(request: HttpRequest, contract_id: uuid.UUID) -> HttpResponse:
    """Balances of today, and the movements of the period that `since` and `until` name (all, without them)."""
    contract = contract_in_url(request, contract_id)
    form = PeriodForm(request.GET)
    now = timezone.now()
    credits = list(credits_of_contract(contract=contract))
    balances = credit_balances(credits=credits)
    account = account_in_period(contract, form)
    context = {
        "section": "credits",
        "contract": contract,
        "year": year_current(years=years_of(contract=contract, at=now), at=now),
        "credits": [(credit, balances[credit.pk]) for credit in credits],
        "available": sum(balance.available for balance in balances.values()),
        "account": account,
        "form": form,
        "until": account.end - datetime.timedelta(seconds=1),
        "synthetic_years": years_synthetic(year_ids=[credit.year_id for credit in credits]),
    }
    return render(request, "portal/credits.html", context)


@require_GET
@login_required
def credit_account_csv(request: HttpRequest, contract_id: uuid.UUID) -> HttpResponse:
    """The same statement of account for a spreadsheet."""
    contract = contract_in_url(request, contract_id)
    text = account_statement_csv(statement=account_in_period(contract, PeriodForm(request.GET)))
    response = HttpResponse(text, content_type="text/csv; charset=utf-8")
    return attachment(response, contract.number, "account.csv")


@require_GET
@login_required
def ledger_json(request: HttpRequest, contract_id: uuid.UUID) -> HttpResponse:
    """The whole ledger of a contract as it is hashed, for people who check the chain themselves (docs/ledger.md)."""
    contract = contract_in_url(request, contract_id)
    response = JsonResponse(ledger_export(contract=contract), json_dumps_params={"ensure_ascii": False, "indent": 1})
    return attachment(response, contract.number, "ledger.json")
