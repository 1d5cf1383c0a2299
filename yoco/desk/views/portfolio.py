"""The portfolio with its queues, and one contract: terms, years, orders, credits."""

import uuid

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from yoco.contracts.words import terms_versions
from yoco.credits.models import CreditState
from yoco.credits.selectors import credits_of_contract, local_date
from yoco.desk.access import desk
from yoco.desk.selectors import (
    comments_unanswered,
    credits_waiting,
    disputes_open,
    exclusions_proposed,
    regroupings_proposed,
    standings,
    unaccounted_running,
    years_closing,
    years_stated,
)
from yoco.desk.views.contracts import contract_in_url
from yoco.incidents.models import Decision


@require_GET
@desk
def portfolio(request: HttpRequest) -> HttpResponse:
    """What waits for a decision, then every contract's running year, those at risk first."""
    waiting = list(credits_waiting())
    context = {
        "section": "portfolio",
        "to_issue": [credit for credit in waiting if credit.state == CreditState.PROPOSED],
        "to_approve": [credit for credit in waiting if credit.state == CreditState.ISSUED],
        "to_settle": sorted(
            (credit for credit in waiting if credit.review_since),
            key=lambda credit: credit.review_since or credit.proposed_at,
        ),
        "closing": years_closing(),
        "disputes": disputes_open(),
        "exclusions": exclusions_proposed(),
        "regroupings": regroupings_proposed(),
        "comments": comments_unanswered(),
        "unaccounted": unaccounted_running(),
        "standings": standings(at=timezone.now()),
    }
    return render(request, "desk/portfolio.html", context)


@require_GET
@desk
def contract_detail(request: HttpRequest, contract_id: uuid.UUID) -> HttpResponse:
    """Everything agreed with one customer under one contract."""
    contract = contract_in_url(contract_id)
    today = local_date(timezone.now(), contract.time_zone)
    context = {
        "contract": contract,
        "over": contract.ends_on <= today,
        "proposals": contract.proposals.filter(state=Decision.PENDING).select_related("proposed_by"),
        "years": years_stated(contract=contract),
        "versions": terms_versions(list(contract.terms.all()), today=today),
        "orders": contract.orders.all(),
        "credits": credits_of_contract(contract=contract),
    }
    return render(request, "desk/contract.html", context)
