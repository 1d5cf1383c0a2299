"""Orders of a contract: recorded, paid with credits, cancelled; each with what it does to the credits."""

import uuid

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods

from yoco.contracts.models import Order
from yoco.core.money import Money
from yoco.credits.selectors import order_payment
from yoco.credits.services import credit_apply
from yoco.desk.access import account_manager, desk, reauthenticated
from yoco.desk.forms import OrderForm, ReasonForm
from yoco.desk.views.confirming import PREVIEW_REASON, Step, step_confirm
from yoco.desk.views.contracts import contract_in_url
from yoco.guarantee.orders import order_cancel, order_record


def order_in_url(order_id: uuid.UUID) -> Order:
    """Account managers see every order; views call it behind `desk`."""
    return get_object_or_404(Order.objects.select_related("contract__organisation"), pk=order_id)


@require_http_methods(["GET", "POST"])
@desk
@reauthenticated
def order_new(request: HttpRequest, contract_id: uuid.UUID) -> HttpResponse:
    """Records a renewal or an expansion."""
    contract, actor = contract_in_url(contract_id), account_manager(request)
    return step_confirm(
        request,
        contract=contract,
        step=Step(
            title=_("Record an order"),
            explanation=_(
                "Approved credits that wait for the next order get their amount by it. Paying is its own step."
            ),
            button=_("Record the order"),
            done=_("The order is recorded. Credits can pay it now."),
            nothing=_("Nothing: no approved credit waits for this order to get its amount."),
        ),
        form=OrderForm(request.POST or None, currency=contract.currency, initial={"key": uuid.uuid4()}),
        run=lambda said: order_record(
            contract=contract,
            number=said["number"],
            kind=said["kind"],
            amount=Money(said["amount"], contract.currency),
            ordered_on=said["ordered_on"],
            actor=actor,
        ),
        back=reverse("desk:contract", args=[contract.pk]),
        context={},
    )


@require_http_methods(["GET", "POST"])
@desk
@reauthenticated
def order_apply(request: HttpRequest, order_id: uuid.UUID) -> HttpResponse:
    """Pays an order with the contract's credits, in the order that the terms prescribe."""
    order, actor = order_in_url(order_id), account_manager(request)
    return step_confirm(
        request,
        contract=order.contract,
        step=Step(
            title=_("Pay order %(order)s with credits") % {"order": order.number},
            explanation=_(
                "Credits pay by priority, then earlier expiry; never more than the terms allow of one order."
            ),
            button=_("Apply the credits"),
            done=_("The credits are applied to order %(order)s.") % {"order": order.number},
        ),
        run=lambda said: credit_apply(order_id=order.pk, actor=actor, key=said["key"]),
        back=reverse("desk:contract", args=[order.contract_id]),
        context={"order": order, "payment": order_payment(order=order)},
    )


@require_http_methods(["GET", "POST"])
@desk
@reauthenticated
def order_call_off(request: HttpRequest, order_id: uuid.UUID) -> HttpResponse:
    """Cancels an order; what credits paid of it comes back, or is forfeited where it ran out meanwhile."""
    order, actor = order_in_url(order_id), account_manager(request)
    return step_confirm(
        request,
        contract=order.contract,
        step=Step(
            title=_("Cancel order %(order)s") % {"order": order.number},
            explanation=_("What credits paid of it comes back to them. What has expired meanwhile is forfeited."),
            button=_("Cancel the order"),
            done=_("Order %(order)s is cancelled.") % {"order": order.number},
            nothing=_("Nothing: no credit paid any of it."),
            form=ReasonForm,
            dangerous=True,
        ),
        run=lambda said: order_cancel(order=order, actor=actor, reason=said.get("reason") or PREVIEW_REASON),
        back=reverse("desk:contract", args=[order.contract_id]),
        context={"order": order, "payment": order_payment(order=order)},
    )
