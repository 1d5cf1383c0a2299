"""One credit with its books, and the steps that change it: issue, approve, reverse, settle."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET, require_http_methods

from yoco.accounts.models import User
from yoco.contracts.models import Order, OrderState
from yoco.credits.models import Credit, CreditState
from yoco.credits.selectors import (
    credit_amount_expected,
    credit_balance,
    credit_expires_at,
    transactions_of_credit,
)
from yoco.credits.services import credit_approve, credit_issue, credit_reverse, credit_settle
from yoco.desk.access import account_manager, desk, reauthenticated
from yoco.desk.forms import ReasonForm
from yoco.desk.views.confirming import PREVIEW_REASON, Step, step_confirm


def credit_in_url(credit_id: uuid.UUID) -> Credit:
    """Account managers see every credit; views call it behind `desk`."""
    credits = Credit.objects.select_related(
        "year__contract__organisation", "terms", "statement", "issued_by", "approved_by", "amount_order"
    ).defer("statement__canonical")
    return get_object_or_404(credits, pk=credit_id)


@require_GET
@desk
def credit_detail(request: HttpRequest, credit_id: uuid.UUID) -> HttpResponse:
    """Its reason, its people, its postings, and the steps open to the person who looks."""
    credit = credit_in_url(credit_id)
    balance = credit_balance(credit=credit)
    orders = Order.objects.filter(contract=credit.year.contract, state=OrderState.RECORDED)
    context = {
        "credit": credit,
        "contract": credit.year.contract,
        "year": credit.year,
        "balance": balance,
        "expected": balance.granted or credit_amount_expected(credit=credit),
        "expires_at": credit_expires_at(credit=credit),
        "entries": transactions_of_credit(credit=credit),
        "orders": orders if credit.state == CreditState.APPROVED and balance.available else [],
        "synthetic": bool((credit.statement.summary or {}).get("synthetic")),
        "own_issue": credit.issued_by_id == account_manager(request).pk,
    }
    return render(request, "desk/credit.html", context)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditStep(Step):
    """A step of one credit and the service that does it: who, why, and the key of the request."""

    run: Callable[[Credit, User, str, str], object]


STEPS = {
    "issue": CreditStep(
        title=_("Issue this credit"),
        explanation=_(
            "You confirm that the statement is right and that the credit is owed. A second person approves it."
        ),
        button=_("Issue the credit"),
        done=_("The credit is issued. It now waits for a second person's approval."),
        run=lambda credit, actor, reason, key: credit_issue(credit_id=credit.pk, actor=actor, reason=reason, key=key),
        form=ReasonForm,
    ),
    "approve": CreditStep(
        title=_("Approve this credit"),
        explanation=_("You are the second person. After this the credit is the customer's."),
        button=_("Approve the credit"),
        done=_("The credit is approved. It pays the next order that it may pay."),
        run=lambda credit, actor, reason, key: credit_approve(credit_id=credit.pk, actor=actor, key=key),
    ),
    "reverse": CreditStep(
        title=_("Reverse this credit"),
        explanation=_("Every posting is taken back by an opposite one, and a new proposal replaces the credit."),
        button=_("Reverse the credit"),
        done=_("The credit is reversed. A new proposal takes its place."),
        run=lambda credit, actor, reason, key: credit_reverse(credit_id=credit.pk, actor=actor, reason=reason, key=key),
        form=ReasonForm,
        dangerous=True,
    ),
    "withdraw": CreditStep(
        title=_("Withdraw what is left of this credit"),
        explanation=_(
            "The later statement holds: what the customer has not used is taken back. What it paid stays paid."
        ),
        button=_("Withdraw the rest"),
        done=_("The credit is settled: what was left of it is withdrawn."),
        nothing=_("Nothing: the customer has used all of it."),
        run=lambda credit, actor, reason, key: credit_settle(
            credit_id=credit.pk, actor=actor, withdraw=True, reason=reason, key=key
        ),
        form=ReasonForm,
        dangerous=True,
    ),
    "keep": CreditStep(
        title=_("Let the customer keep this credit"),
        explanation=_(
            "The credit stays as it is, although the later statement would not grant it, and may pay orders again."
        ),
        button=_("Let the customer keep it"),
        done=_("The credit is settled: the customer keeps it."),
        nothing=_("Nothing: the books stay as they are."),
        run=lambda credit, actor, reason, key: credit_settle(
            credit_id=credit.pk, actor=actor, withdraw=False, reason=reason, key=key
        ),
        form=ReasonForm,
    ),
}


@require_http_methods(["GET", "POST"])
@desk
@reauthenticated
def credit_step(request: HttpRequest, credit_id: uuid.UUID, step: str) -> HttpResponse:
    """GET shows what the step would post; POST does it."""
    credit, chosen = credit_in_url(credit_id), STEPS[step]
    actor = account_manager(request)
    return step_confirm(
        request,
        contract=credit.year.contract,
        step=chosen,
        run=lambda said: chosen.run(credit, actor, said.get("reason") or PREVIEW_REASON, said["key"]),
        back=reverse("desk:credit", args=[credit.pk]),
        context={"credit": credit},
    )
