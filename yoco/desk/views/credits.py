"""One credit with its books, and the steps that change it: issue, approve, reverse; paying an order with credits."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET, require_http_methods

from yoco.accounts.models import User
from yoco.contracts.models import Contract, Order, OrderState
from yoco.core.problem import DomainError
from yoco.credits.models import Credit, CreditState
from yoco.credits.selectors import (
    credit_amount_expected,
    credit_balance,
    credit_expires_at,
    order_payment,
    transactions_of_credit,
)
from yoco.credits.services import credit_apply, credit_approve, credit_issue, credit_reverse
from yoco.desk.access import account_manager, desk, reauthenticated
from yoco.desk.forms import ConfirmForm, ReasonForm
from yoco.desk.steps import step_preview

PREVIEW_REASON = "preview"  # the preview needs some reason to run; it is rolled back


def credit_in_url(credit_id: uuid.UUID) -> Credit:
    """Account managers see every credit; views call it behind `desk`."""
    credits = Credit.objects.select_related(
        "year__contract__organisation", "terms", "statement", "issued_by", "approved_by", "amount_order"
    ).defer("statement__canonical", "statement__summary")
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
        "orders": orders if credit.state == CreditState.APPROVED else [],
        "own_issue": credit.issued_by_id == account_manager(request).pk,
    }
    return render(request, "desk/credit.html", context)


@dataclass(frozen=True, slots=True)
class Step:
    """What a step says before and after, and the service that does it."""

    title: str | Promise
    explanation: str | Promise
    button: str | Promise
    done: str | Promise
    run: Callable[[Credit, User, str, str], object]
    form: type[ConfirmForm] = ConfirmForm
    dangerous: bool = False


STEPS = {
    "issue": Step(
        title=_("Issue this credit"),
        explanation=_(
            "You confirm that the statement is right and that the credit is owed. A second person approves it."
        ),
        button=_("Issue the credit"),
        done=_("The credit is issued. It now waits for a second person's approval."),
        run=lambda credit, actor, reason, key: credit_issue(
            credit_id=credit.pk, actor=actor, reason=reason or PREVIEW_REASON, key=key
        ),
        form=ReasonForm,
    ),
    "approve": Step(
        title=_("Approve this credit"),
        explanation=_("You are the second person. After this the credit is the customer's."),
        button=_("Approve the credit"),
        done=_("The credit is approved. It pays the next order that it may pay."),
        run=lambda credit, actor, reason, key: credit_approve(credit_id=credit.pk, actor=actor, key=key),
    ),
    "reverse": Step(
        title=_("Reverse this credit"),
        explanation=_("Every posting is taken back by an opposite one, and a new proposal replaces the credit."),
        button=_("Reverse the credit"),
        done=_("The credit is reversed. A new proposal takes its place."),
        run=lambda credit, actor, reason, key: credit_reverse(
            credit_id=credit.pk, actor=actor, reason=reason or PREVIEW_REASON, key=key
        ),
        form=ReasonForm,
        dangerous=True,
    ),
}


@require_http_methods(["GET", "POST"])
@desk
@reauthenticated
def credit_step(request: HttpRequest, credit_id: uuid.UUID, step: str) -> HttpResponse:
    """GET shows what the step would post; POST does it."""
    credit, chosen = credit_in_url(credit_id), STEPS[step]
    actor = account_manager(request)
    return _confirm(
        request,
        contract=credit.year.contract,
        title=chosen.title,
        explanation=chosen.explanation,
        button=chosen.button,
        done=chosen.done,
        form_class=chosen.form,
        dangerous=chosen.dangerous,
        run=lambda reason, key: chosen.run(credit, actor, reason, key),
        back=reverse("desk:credit", args=[credit.pk]),
        context={"credit": credit},
    )


@require_http_methods(["GET", "POST"])
@desk
@reauthenticated
def order_apply(request: HttpRequest, order_id: uuid.UUID) -> HttpResponse:
    """Pays an order with the contract's credits, in the order that the terms prescribe."""
    order = get_object_or_404(Order.objects.select_related("contract__organisation"), pk=order_id)
    actor = account_manager(request)
    return _confirm(
        request,
        contract=order.contract,
        title=_("Pay order %(order)s with credits") % {"order": order.number},
        explanation=_("Credits pay by priority, then earlier expiry; never more than the terms allow of one order."),
        button=_("Apply the credits"),
        done=_("The credits are applied to order %(order)s.") % {"order": order.number},
        form_class=ConfirmForm,
        dangerous=False,
        run=lambda reason, key: credit_apply(order_id=order.pk, actor=actor, key=key),
        back=reverse("desk:contract", args=[order.contract_id]),
        context={"order": order, "payment": order_payment(order=order)},
    )


def _confirm(
    request: HttpRequest,
    *,
    contract: Contract,
    title: object,
    explanation: object,
    button: object,
    done: object,
    form_class: type[ConfirmForm],
    dangerous: bool,
    run: Callable[[str, str], object],
    back: str,
    context: dict[str, object],
) -> HttpResponse:
    form = form_class(request.POST or None, initial={"key": uuid.uuid4()})
    refused = ""
    if request.method == "POST" and form.is_valid():
        try:
            run(form.cleaned_data.get("reason", ""), str(form.cleaned_data["key"]))
        except DomainError as error:
            refused = error.message
        else:
            messages.success(request, str(done))
            return redirect(back)
    preview = step_preview(contract=contract, step=lambda: run("", str(uuid.uuid4())))
    return render(
        request,
        "desk/step.html",
        {
            **context,
            "contract": contract,
            "title": title,
            "explanation": explanation,
            "button": button,
            "dangerous": dangerous,
            "form": form,
            "preview": preview,
            "refused": refused or preview.refused,
            "back": back,
        },
        status=409 if refused else 200,
    )
