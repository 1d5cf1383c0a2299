"""The portfolio with its queues, and one contract: terms, years, orders, credits."""

import uuid

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from yoco.contracts.words import terms_versions
from yoco.credits.selectors import credits_of_contract, local_date
from yoco.desk.access import account_manager, desk
from yoco.desk.queues import QUEUES, queue_page, waiting
from yoco.desk.selectors import standings, years_stated
from yoco.desk.views.contracts import contract_in_url
from yoco.incidents.models import Decision


@require_GET
@desk
def portfolio(request: HttpRequest) -> HttpResponse:
    """What waits for a decision, then every contract, those at risk first."""
    page = standings(at=timezone.now(), after=request.GET.get("after", ""))
    context = {
        "section": "portfolio",
        "queues": waiting(reader=account_manager(request)),
        "standings": page.rows,
        "after": page.after,
        "continued": "after" in request.GET,
    }
    return render(request, "desk/portfolio.html", context)


@require_GET
@desk
def queue(request: HttpRequest, name: str) -> HttpResponse:
    """One queue, the longest waiting first."""
    chosen = QUEUES.get(name)
    if chosen is None:
        raise Http404
    context = {
        "section": "portfolio",
        "queue": chosen,
        "page": queue_page(chosen, after=request.GET.get("after", "")),
        "continued": "after" in request.GET,
    }
    return render(request, "desk/queue.html", context)


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
