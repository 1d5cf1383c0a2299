"""What people and statements decide about a credit: propose, issue, approve, reverse, restate, settle."""

import uuid

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from yoco.accounts.models import User
from yoco.contracts.models import ContractYear, CreditBase, OrderState
from yoco.core.problem import DomainError
from yoco.credits.grounds import grounds_of
from yoco.credits.ledger import (
    Movement,
    contract_lock,
    request_earlier,
    request_of,
    request_record,
    transaction_post,
)
from yoco.credits.models import AccountKind, Credit, CreditState, TransactionKind
from yoco.credits.selectors import (
    credit_balance,
    credit_minor_of,
    credit_of_year,
)
from yoco.credits.transitions import (
    amount_fix,
    amount_unfix,
    credit_loaded,
    credit_locked,
    end_reversed,
    propose,
    reason_cleaned,
    require_account_manager,
    require_not_run_out,
    require_state,
    review_begin,
    review_begin_order,
    review_end,
    system_request,
    tell,
)


@transaction.atomic
def credit_propose(
    *, year: ContractYear, statement_id: uuid.UUID, statement_sha256: str, actor: User | None = None
) -> Credit:
    """Proposes the credit of a year whose frozen statement says it fell short. Proposing again changes nothing.

    Raises DomainError if the statement is not of this year, has another hash or does not say `short`, and if the year
    already has a live credit under another statement.
    """
    contract_lock(year.contract_id)
    earlier = Credit.objects.filter(statement_id=statement_id).order_by("-proposed_at", "-id").first()
    if earlier is not None:
        return credit_loaded(earlier.pk)
    if credit_of_year(year_id=year.pk) is not None:
        raise DomainError(_("This contract year already has a credit."), code="credit_exists")
    return propose(year=year, statement_id=statement_id, statement_sha256=statement_sha256, actor=actor)


@transaction.atomic
def credit_issue(
    *, credit_id: uuid.UUID, actor: User, reason: str, priority: int = 100, key: str | None = None
) -> Credit:
    """An account manager reviewed the proposal and issues it; a second person must approve it.

    With base `year_fees` the amount is fixed now and posted as awaiting approval.
    """
    contract, credit = credit_locked(credit_id)
    reason = reason_cleaned(reason)
    request = request_of(
        action="credit.issue",
        key=key,
        natural=f"issue:{credit_id}",
        credit=credit_id,
        actor=actor.pk,
        reason=reason,
        priority=priority,
    )
    if request_earlier(request):
        return credit
    require_account_manager(actor)
    require_state(credit, CreditState.PROPOSED)
    if not 0 <= priority <= 1000:
        raise DomainError(_("The priority is a number from 0 to 1000."), code="bad_priority")
    now = timezone.now()
    credit.state, credit.issued_at, credit.issued_by = CreditState.ISSUED, now, actor
    credit.issue_reason, credit.priority = reason, priority
    require_not_run_out(credit, now)
    minor = 0
    if credit.base == CreditBase.YEAR_FEES:
        if credit.year.fees_minor is None:
            raise DomainError(
                _("The fees of this contract year are not recorded; record them before issuing the credit."),
                code="fees_missing",
            )
        minor = credit_minor_of(terms=credit.terms, base_minor=credit.year.fees_minor)
    credit.save(update_fields=["state", "issued_at", "issued_by", "issue_reason", "priority"])
    if minor > 0:
        transaction_post(
            contract=contract,
            kind=TransactionKind.ISSUE,
            request=request,
            movements=[Movement(credit, AccountKind.GRANTED, AccountKind.AWAITING, minor)],
            statement_id=credit.statement_id,
            statement_sha256=credit.statement_sha256,
            actor=actor,
            reason=reason,
            grounds=grounds_of(credit=credit, kind=TransactionKind.ISSUE, base_minor=credit.year.fees_minor),
        )
    request_record(request, credit=credit.pk)
    tell("credit.issued", credit, actor, reason=reason, minor=minor)
    return credit


@transaction.atomic
def credit_approve(*, credit_id: uuid.UUID, actor: User, key: str | None = None) -> Credit:
    """A second person approves an issued credit: from now on it can pay orders."""
    contract, credit = credit_locked(credit_id)
    request = request_of(
        action="credit.approve", key=key, natural=f"approve:{credit_id}", credit=credit_id, actor=actor.pk
    )
    if request_earlier(request):
        return credit
    require_account_manager(actor)
    require_state(credit, CreditState.ISSUED)
    if credit.issued_by_id == actor.pk:
        raise DomainError(_("Whoever issued a credit cannot approve it; a second person must."), code="four_eyes")
    now = timezone.now()
    require_not_run_out(credit, now)
    credit.state, credit.approved_at, credit.approved_by = CreditState.APPROVED, now, actor
    credit.save(update_fields=["state", "approved_at", "approved_by"])
    awaiting = credit_balance(credit=credit).awaiting
    if awaiting:
        transaction_post(
            contract=contract,
            kind=TransactionKind.APPROVE,
            request=request,
            movements=[Movement(credit, AccountKind.AWAITING, AccountKind.AVAILABLE, awaiting)],
            statement_id=credit.statement_id,
            statement_sha256=credit.statement_sha256,
            actor=actor,
            grounds=grounds_of(credit=credit, kind=TransactionKind.APPROVE, base_minor=credit.year.fees_minor),
        )
    request_record(request, credit=credit.pk)
    tell("credit.approved", credit, actor, minor=awaiting)
    amount_fix(contract, credit)
    return credit


@transaction.atomic
def credit_reverse(*, credit_id: uuid.UUID, actor: User, reason: str, key: str | None = None) -> Credit:
    """Takes back an unused credit that people issued wrongly, and proposes it afresh: what is owed stays owed.

    Returns the new proposal. Raises DomainError if any of it was used; then the orders must be cancelled first.
    """
    contract, credit = credit_locked(credit_id)
    reason = reason_cleaned(reason)
    request = request_of(
        action="credit.reverse",
        key=key,
        natural=f"reverse:{credit_id}",
        credit=credit_id,
        actor=actor.pk,
        reason=reason,
    )
    if earlier := request_earlier(request):
        return credit_loaded(uuid.UUID(earlier.result["proposal"]))
    require_account_manager(actor)
    require_state(credit, CreditState.ISSUED, CreditState.APPROVED)
    if credit.review_since is not None:
        raise DomainError(_("This credit awaits settlement; settle it instead."), code="under_review")
    if credit_balance(credit=credit).applied:
        raise DomainError(
            _("Part of this credit has paid an order, so it cannot be reversed. Cancel that order first."),
            code="credit_used",
        )
    end_reversed(contract, credit, request, credit.statement_id, credit.statement_sha256, actor, reason)
    proposal = propose(
        year=credit.year,
        statement_id=credit.statement_id,
        statement_sha256=credit.statement_sha256,
        actor=actor,
        replaces=credit,
    )
    request_record(request, proposal=proposal.pk)
    return proposal


@transaction.atomic
def credit_restated(
    *, year: ContractYear, statement_id: uuid.UUID, statement_sha256: str, short: bool, actor: User | None = None
) -> Credit | None:
    """Brings a year's credit in line with a restatement. Doing it twice changes nothing.

    Short, without a live credit: proposes one. Met: an unused credit is reversed, a used one flagged for people to
    settle, also where a cancelled order had flagged it. Short again: the flag goes, or the question about the cancelled
    order comes back. Returns the live credit, if any.
    """
    contract = contract_lock(year.contract_id)
    credit = credit_of_year(year_id=year.pk)
    if short:
        if credit is None:
            return credit_propose(year=year, statement_id=statement_id, statement_sha256=statement_sha256, actor=actor)
        if credit.review_since is not None and credit.review_statement_id != credit.statement_id:
            review_end(credit)
            tell("credit.review_ended", credit, actor, statement=str(statement_id))
            order = credit.amount_order
            if (
                credit.state == CreditState.APPROVED
                and order is not None
                and order.state == OrderState.CANCELLED
                and credit_balance(credit=credit).applied
            ):
                review_begin_order(credit, order, actor)
        return credit
    flagged = credit is not None and credit.review_since is not None
    if credit is None or (flagged and credit.review_statement_id != credit.statement_id):
        return credit
    reason = _("A restatement found that the commitment was met.")
    if flagged or credit_balance(credit=credit).applied:
        review_begin(credit, reason, statement_id, actor)
        return credit
    if credit.state == CreditState.EXPIRED:
        return credit
    end_reversed(
        contract,
        credit,
        system_request("restated", statement_id, credit.pk),
        statement_id,
        statement_sha256,
        actor,
        reason,
    )
    return None


@transaction.atomic
def credit_settle(*, credit_id: uuid.UUID, actor: User, withdraw: bool, reason: str, key: str | None = None) -> Credit:
    """People decided about a flagged credit: withdraw what is left of it, or let the customer keep it.

    Raises DomainError if it does not await settlement, and if it is to be withdrawn although the year still fell short.
    """
    contract, credit = credit_locked(credit_id)
    reason = reason_cleaned(reason)
    request = request_of(
        action="credit.settle",
        key=key,
        natural=f"settle:{credit_id}:{credit.review_since}",
        credit=credit_id,
        actor=actor.pk,
        withdraw=withdraw,
        reason=reason,
    )
    if request_earlier(request):
        return credit
    require_account_manager(actor)
    if credit.review_since is None or credit.review_statement is None:
        raise DomainError(_("This credit does not await settlement."), code="not_under_review")
    statement = credit.review_statement
    if withdraw and statement.verdict == "short":
        raise DomainError(
            _(
                "The year still fell short, so this credit stays owed and cannot be withdrawn. Let the customer keep "
                "it; if it was issued wrongly, reverse it afterwards, which proposes it anew."
            ),
            code="still_short",
        )
    balance = credit_balance(credit=credit)
    review_end(credit)
    if withdraw and credit.state == CreditState.APPROVED and not balance.applied:
        end_reversed(contract, credit, request, statement.pk, statement.sha256, actor, reason)
    elif withdraw and balance.available:
        transaction_post(
            contract=contract,
            kind=TransactionKind.REVERSE,
            request=request,
            movements=[Movement(credit, AccountKind.AVAILABLE, AccountKind.GRANTED, balance.available)],
            statement_id=statement.pk,
            statement_sha256=statement.sha256,
            actor=actor,
            reason=reason,
        )
    elif (
        not withdraw
        and credit.state == CreditState.APPROVED
        and credit.amount_order is not None
        and credit.amount_order.state == OrderState.CANCELLED
        and not balance.applied
    ):
        amount_unfix(contract, credit, credit.amount_order, actor)
    request_record(request, credit=credit.pk)
    tell("credit.settled", credit, actor, reason=reason, withdrawn=balance.available if withdraw else 0)
    return credit
