"""What becomes of an approved credit: its amount is fixed, it pays orders, comes back, runs out."""

import datetime
import uuid
from dataclasses import replace

from django.db import transaction
from django.db.models import Sum
from django.utils import timezone
from django.utils.translation import gettext as _

from yoco.accounts.models import User
from yoco.contracts.models import CreditBase, Order, OrderState
from yoco.core.problem import DomainError
from yoco.credits.amounts import plan_application
from yoco.credits.ledger import (
    Movement,
    contract_lock,
    request_earlier,
    request_of,
    request_record,
    transaction_post,
)
from yoco.credits.models import AccountKind, Credit, CreditState, LedgerTransaction, TransactionKind
from yoco.credits.selectors import (
    order_payment,
    postings_counted,
)
from yoco.credits.transitions import (
    amount_fix,
    amount_unfix,
    credit_loaded,
    credit_locked,
    expire_if_due,
    nothing_to_apply,
    payers_of,
    require_account_manager,
    system_request,
    tell,
)


@transaction.atomic
def credits_fix(*, contract_id: uuid.UUID) -> list[Credit]:
    """Fixes the amount of every approved `next_order` credit of a contract whose order is recorded.

    Call it in the transaction that records an order. Doing it twice changes nothing.
    """
    contract = contract_lock(contract_id)
    waiting = Credit.objects.filter(
        year__contract=contract,
        state=CreditState.APPROVED,
        base=CreditBase.NEXT_ORDER,
        amount_order=None,
        review_since=None,
    ).select_related("year__contract", "terms")
    return [credit for credit in waiting if amount_fix(contract, credit)]


@transaction.atomic
def credit_apply(
    *, order_id: uuid.UUID, actor: User, amount_minor: int | None = None, key: str | None = None
) -> list[LedgerTransaction]:
    """Pays an order with the contract's credits, up to its cap, or up to `amount_minor` where given.

    Credits pay in the order priority, earlier expiry, earlier effective, id; each makes one transaction. Raises
    DomainError if the order is cancelled, or if no credit can pay any of it.
    """
    order = Order.objects.get(pk=order_id)
    contract = contract_lock(order.contract_id)
    order.refresh_from_db()
    request = request_of(
        action="credit.apply",
        key=key,
        natural=f"apply:{uuid.uuid4()}",  # without the client's key every call is a new request
        order=order_id,
        actor=actor.pk,
        amount=amount_minor,
    )
    if earlier := request_earlier(request):
        return list(LedgerTransaction.objects.filter(pk__in=earlier.result["transactions"]).order_by("sequence"))
    require_account_manager(actor)
    if order.state != OrderState.RECORDED:
        raise DomainError(_("Order %(order)s is cancelled.") % {"order": order.number}, code="order_cancelled")
    if amount_minor is not None and amount_minor <= 0:
        raise DomainError(_("The amount to apply must be above zero."), code="bad_amount")
    credits_fix(contract_id=contract.pk)
    room = order_payment(order=order).room
    payers = payers_of(contract, order, timezone.now())
    plan = plan_application(payers, room if amount_minor is None else min(room, amount_minor))
    if not plan:
        raise nothing_to_apply(order, room)
    credits = Credit.objects.select_related("year__contract").in_bulk([pk for pk, _minor in plan])
    made = []
    for credit_id, minor in plan:
        credit = credits[credit_id]
        made.append(
            transaction_post(
                contract=contract,
                kind=TransactionKind.APPLY,
                request=replace(request, key=f"{request.key}/{credit_id}"),
                movements=[Movement(credit, AccountKind.AVAILABLE, AccountKind.APPLIED, minor, order.pk)],
                statement_id=credit.statement_id,
                statement_sha256=credit.statement_sha256,
                actor=actor,
            )
        )
        tell("credit.applied", credit, actor, order=str(order.pk), minor=minor)
    request_record(request, transactions=[str(row.pk) for row in made])
    return made


@transaction.atomic
def credits_reinstate(*, order_id: uuid.UUID, actor: User | None) -> list[LedgerTransaction]:
    """Gives back what a cancelled order used. What ran out meanwhile is forfeited at once.

    Call it in the transaction that cancels an order. A credit whose amount that order had fixed waits for the next
    order again if nothing of it was used elsewhere; else it is flagged for people. Doing it twice changes nothing.
    """
    order = Order.objects.get(pk=order_id)
    contract = contract_lock(order.contract_id)
    order.refresh_from_db()
    if order.state != OrderState.CANCELLED:
        raise DomainError(_("Order %(order)s is not cancelled.") % {"order": order.number}, code="order_not_cancelled")
    made = []
    used = (
        LedgerTransaction.objects.filter(
            contract=contract,
            kind=TransactionKind.APPLY,
            reversed_by=None,
            postings__order=order,
        )
        .order_by("sequence")
        .distinct()
    )
    for paid in used:
        posting = paid.postings.get(account__kind=AccountKind.APPLIED)
        credit = credit_loaded(posting.credit_id)
        made.append(
            transaction_post(
                contract=contract,
                kind=TransactionKind.REINSTATE,
                request=system_request("reinstate", paid.pk),
                movements=[
                    Movement(credit, AccountKind.APPLIED, AccountKind.AVAILABLE, posting.minor, order.pk),
                ],
                statement_id=paid.statement_id,
                statement_sha256=paid.statement_sha256,
                actor=actor,
                reverses=paid,
            )
        )
        tell("credit.reinstated", credit, actor, order=str(order.pk), minor=posting.minor)
        expire_if_due(contract, credit, timezone.now(), occasion=str(paid.pk))
    for credit in Credit.objects.filter(amount_order=order, state=CreditState.APPROVED).select_related(
        "year__contract", "terms"
    ):
        made += amount_unfix(contract, credit, order, actor)
    return made


def credits_expire(*, as_of: datetime.datetime | None = None) -> list[Credit]:
    """Forfeits what ran out by `as_of` (default: now), one transaction for each credit. Returns those that expired."""
    as_of = as_of or timezone.now()
    live = Credit.objects.filter(state__in=[CreditState.PROPOSED, CreditState.ISSUED, CreditState.APPROVED])
    expired = []
    for pk in live.order_by("id").values_list("pk", flat=True):
        with transaction.atomic():
            contract, credit = credit_locked(pk)
            if expire_if_due(contract, credit, as_of, occasion="due"):
                expired.append(credit)
    return expired


def credits_sweep(*, as_of: datetime.datetime | None = None) -> int:
    """Does all that is due: reinstates what cancelled orders hold, fixes amounts, forfeits what ran out.

    Finds the work in the database, so whatever a crash or a forgotten call left undone is done now. Returns how many
    steps it took.
    """
    steps = 0
    paid = postings_counted().filter(account__kind=AccountKind.APPLIED, order__state=OrderState.CANCELLED)
    cancelled = paid.values("order_id").annotate(minor=Sum("minor")).filter(minor__gt=0)
    holding = set(cancelled.values_list("order_id", flat=True))
    fixing = Credit.objects.filter(
        state=CreditState.APPROVED, review_since=None, amount_order__state=OrderState.CANCELLED
    )
    for order_id in sorted(holding | set(fixing.values_list("amount_order_id", flat=True))):
        steps += len(credits_reinstate(order_id=order_id, actor=None))
    waiting = Credit.objects.filter(state=CreditState.APPROVED, base=CreditBase.NEXT_ORDER, amount_order=None)
    for contract_id in sorted(set(waiting.values_list("year__contract_id", flat=True))):
        steps += len(credits_fix(contract_id=contract_id))
    return steps + len(credits_expire(as_of=as_of))
