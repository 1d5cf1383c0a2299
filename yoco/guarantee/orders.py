"""Orders together with the credits that they touch, in one transaction."""

import datetime

from django.db import transaction

from yoco.accounts.models import User
from yoco.contracts import services
from yoco.contracts.locks import contracts_lock
from yoco.contracts.models import Contract, Order
from yoco.core.money import Money
from yoco.credits.services import credits_fix, credits_reinstate


@transaction.atomic
def order_record(
    *, contract: Contract, number: str, kind: str, amount: Money, ordered_on: datetime.date, actor: User
) -> Order:
    """Records an order and fixes the amount of every approved credit that waited for it. Raises DomainError."""
    contracts_lock([contract.pk])
    order = services.order_record(
        contract=contract, number=number, kind=kind, amount=amount, ordered_on=ordered_on, actor=actor
    )
    credits_fix(contract_id=contract.pk)
    return order


@transaction.atomic
def order_cancel(*, order: Order, actor: User, reason: str) -> Order:
    """Cancels an order and gives back what credits paid of it. Raises DomainError if it is cancelled already."""
    contracts_lock([order.contract_id])
    cancelled = services.order_cancel(order=order, actor=actor, reason=reason)
    credits_reinstate(order_id=order.pk, actor=actor)
    return cancelled
