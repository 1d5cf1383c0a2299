"""The steps that services are made of. Each expects its caller's transaction and the contract's lock."""

import datetime
import uuid

from django.db.models import Q
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from yoco.accounts.models import User
from yoco.contracts.models import Contract, ContractYear, CreditBase, Order, OrderKind
from yoco.core.audit import audit_record
from yoco.core.money import Money
from yoco.core.outbox import outbox_record
from yoco.core.problem import DomainError
from yoco.credits.amounts import Payer
from yoco.credits.grounds import GRANTS, grounds_of
from yoco.credits.ledger import (
    Movement,
    Request,
    contract_lock,
    digest,
    request_earlier,
    request_record,
    transaction_post,
)
from yoco.credits.models import AccountKind, Credit, CreditState, LedgerTransaction, TransactionKind
from yoco.credits.selectors import (
    credit_balance,
    credit_balances,
    credit_base_order,
    credit_expires_at,
    credit_minor_of,
    local_date,
    postings_counted,
)


def credit_loaded(credit_id: uuid.UUID) -> Credit:
    """The credit with its year, contract and terms. Raises DomainError if there is none."""
    credit = Credit.objects.select_related("year__contract", "terms").filter(pk=credit_id).first()
    if credit is None:
        raise DomainError(_("There is no such credit."), code="no_credit")
    return credit


def credit_locked(credit_id: uuid.UUID) -> tuple[Contract, Credit]:
    """The credit as it is once every earlier writer of its contract's books has finished."""
    contract = contract_lock(credit_loaded(credit_id).year.contract_id)
    return contract, credit_loaded(credit_id)


def system_request(action: str, *parts: object) -> Request:
    """The key of a step that the system takes once for the given ids."""
    return Request(key=":".join([action, *map(str, parts)]), action=action, hash=digest([action, *map(str, parts)]))


def require_account_manager(actor: User) -> None:
    """Raises DomainError unless `actor` works at the desk."""
    if not (actor.is_active and actor.is_account_manager):
        raise DomainError(_("Only an account manager can do this."), code="not_account_manager")


def require_state(credit: Credit, *allowed: CreditState) -> None:
    """Raises DomainError, naming the state the credit is in, unless it is one of `allowed`."""
    if credit.state not in allowed:
        raise DomainError(
            _("This credit is in the state “%(state)s”; that does not allow this action. Reload the page.")
            % {"state": CreditState(credit.state).label},
            code="wrong_state",
        )


def require_not_run_out(credit: Credit, now: datetime.datetime) -> None:
    """Raises DomainError if the credit can no longer pay."""
    expires_at = credit_expires_at(credit=credit)
    if expires_at is not None and expires_at <= now:
        last_day = local_date(expires_at - datetime.timedelta(seconds=1), credit.year.contract.time_zone)
        raise DomainError(
            _("Under its terms this credit ran out on %(day)s.") % {"day": date_format(last_day)}, code="run_out"
        )


def reason_cleaned(reason: str) -> str:
    """The reason a person gave. Raises DomainError if it is empty, too long or not plain text."""
    reason = reason.strip()
    if not reason:
        raise DomainError(_("Please give a reason."), code="reason_missing")
    if len(reason) > 2000:
        raise DomainError(_("The reason is longer than 2000 characters."), code="reason_too_long")
    if not all(character.isprintable() or character in "\n\t" for character in reason.replace("\r", "")):
        raise DomainError(_("The reason contains characters that cannot be stored."), code="reason_unprintable")
    return reason


def tell(action: str, credit: Credit, actor: User | None, **data: object) -> None:
    """Audit entry and outbox event of one step, in the transaction of that step."""
    contract = credit.year.contract
    audit_record(action=action, actor=actor, subject=credit, organisation_id=contract.organisation_id, data={**data})
    outbox_record(
        kind=action,
        subject=credit,
        organisation_id=contract.organisation_id,
        payload={
            "credit": str(credit.pk),
            "contract": str(contract.pk),
            "year": str(credit.year_id),
            "statement": str(credit.statement_id),
        },
    )


def propose(
    *,
    year: ContractYear,
    statement_id: uuid.UUID,
    statement_sha256: str,
    actor: User | None,
    replaces: Credit | None = None,
) -> Credit:
    """A new proposal, under the terms that the statement was computed under."""
    credit = Credit(
        year=year,
        statement_id=statement_id,
        statement_sha256=statement_sha256,
        currency=year.contract.currency,
        replaces=replaces,
    )
    statement = credit.statement
    if statement.year_id != year.pk or statement.sha256 != statement_sha256:
        raise DomainError(_("The statement does not belong to this contract year."), code="statement_foreign")
    if statement.verdict != "short":
        raise DomainError(_("The statement does not say that the year fell short."), code="statement_not_short")
    credit.terms = statement.terms
    credit.base = statement.terms.credit_base
    credit.save(force_insert=True)
    tell("credit.proposed", credit, actor)
    return credit


def amount_fix(contract: Contract, credit: Credit) -> bool:
    """Fixes the amount of an approved `next_order` credit if its order is recorded. True if it did."""
    if credit.base != CreditBase.NEXT_ORDER or credit.amount_order_id is not None:
        return False
    order = credit_base_order(credit=credit)
    if order is None:
        return False
    minor = credit_minor_of(terms=credit.terms, base_minor=order.amount_minor)
    credit.amount_order = order
    credit.save(update_fields=["amount_order"])
    if minor > 0:
        transaction_post(
            contract=contract,
            kind=TransactionKind.FIX,
            request=system_request("fix", credit.pk, order.pk),
            movements=[Movement(credit, AccountKind.GRANTED, AccountKind.AVAILABLE, minor, order.pk)],
            statement_id=credit.statement_id,
            statement_sha256=credit.statement_sha256,
            actor=None,
            grounds=grounds_of(credit=credit, kind=TransactionKind.FIX, base_minor=order.amount_minor),
        )
    tell("credit.amount_fixed", credit, None, order=str(order.pk), minor=minor)
    return True


def amount_unfix(contract: Contract, credit: Credit, order: Order, actor: User | None) -> list[LedgerTransaction]:
    """The order that fixed the amount was cancelled: wait for the next, or ask people if part was used elsewhere."""
    if credit.review_since is not None:
        return []
    balance = credit_balance(credit=credit)
    if balance.applied:
        if not request_earlier(system_request("ask", credit.pk, order.pk)):  # else people have decided about it
            review_begin_order(credit, order, actor)
        return []
    made = []
    if balance.available:
        made.append(
            transaction_post(
                contract=contract,
                kind=TransactionKind.REVERSE,
                request=system_request("unfix", credit.pk, order.pk),
                movements=[Movement(credit, AccountKind.AVAILABLE, AccountKind.GRANTED, balance.available, order.pk)],
                statement_id=credit.statement_id,
                statement_sha256=credit.statement_sha256,
                actor=actor,
                reverses=grant_standing(credit),
            )
        )
    credit.amount_order = None
    credit.save(update_fields=["amount_order"])
    tell("credit.amount_unfixed", credit, actor, order=str(order.pk), minor=balance.available)
    amount_fix(contract, credit)
    return made


def grant_standing(credit: Credit) -> LedgerTransaction | None:
    """The transaction that granted the credit and was not reversed."""
    return (
        LedgerTransaction.objects.filter(kind__in=GRANTS, postings__credit=credit, reversed_by=None)
        .order_by("-sequence")
        .first()
    )


def end_reversed(
    contract: Contract,
    credit: Credit,
    request: Request,
    statement_id: uuid.UUID,
    statement_sha256: str,
    actor: User | None,
    reason: str,
) -> None:
    """Ends an unused credit as reversed; what it granted goes back."""
    balance = credit_balance(credit=credit)
    movements = [
        Movement(credit, kind, AccountKind.GRANTED, minor)
        for kind, minor in ((AccountKind.AWAITING, balance.awaiting), (AccountKind.AVAILABLE, balance.available))
        if minor
    ]
    credit.state, credit.ended_at, credit.ended_reason = CreditState.REVERSED, timezone.now(), reason
    credit.save(update_fields=["state", "ended_at", "ended_reason"])
    if movements:
        transaction_post(
            contract=contract,
            kind=TransactionKind.REVERSE,
            request=request,
            movements=movements,
            statement_id=statement_id,
            statement_sha256=statement_sha256,
            actor=actor,
            reason=reason,
            reverses=grant_standing(credit),
        )
    tell("credit.reversed", credit, actor, reason=reason, minor=sum(m.minor for m in movements))


def expire_if_due(contract: Contract, credit: Credit, as_of: datetime.datetime, *, occasion: str) -> bool:
    """Forfeits what the credit has left if it ran out by `as_of`. True if it expired.

    `occasion` tells the transactions of one credit apart: `due`, or the payment that came back after it had run out.
    """
    expires_at = credit_expires_at(credit=credit)
    if credit.state == CreditState.REVERSED or expires_at is None or expires_at > as_of:
        return False
    balance = credit_balance(credit=credit)
    source = AccountKind.AWAITING if balance.awaiting else AccountKind.AVAILABLE
    minor = balance.awaiting or balance.available
    amount_known = credit.amount_order_id is not None or (
        credit.base == CreditBase.YEAR_FEES and credit.state == CreditState.APPROVED
    )
    if not minor and (amount_known or credit.state == CreditState.EXPIRED):
        return False  # used up
    if credit.state != CreditState.EXPIRED:
        credit.state, credit.ended_at = CreditState.EXPIRED, timezone.now()
        credit.save(update_fields=["state", "ended_at"])
    if minor:
        # Never before the postings that it takes from, so that the balance of no past day runs below zero.
        latest = (
            postings_counted()
            .filter(credit=credit)
            .order_by("-transaction__effective_at")
            .values_list("transaction__effective_at", flat=True)
            .first()
        )
        transaction_post(
            contract=contract,
            kind=TransactionKind.EXPIRE,
            request=system_request("expire", credit.pk, occasion),
            movements=[Movement(credit, source, AccountKind.FORFEITED, minor)],
            statement_id=credit.statement_id,
            statement_sha256=credit.statement_sha256,
            actor=None,
            effective_at=max(expires_at, latest) if latest else expires_at,
        )
    tell("credit.expired", credit, None, minor=minor)
    return True


def review_begin(credit: Credit, reason: str, statement_id: uuid.UUID, actor: User | None) -> None:
    """Flags a credit for people; it pays no order until they settle it."""
    credit.review_since, credit.review_reason, credit.review_statement_id = timezone.now(), reason, statement_id
    credit.save(update_fields=["review_since", "review_reason", "review_statement"])
    tell("credit.review_begun", credit, actor, reason=reason, statement=str(statement_id))


def review_begin_order(credit: Credit, order: Order, actor: User | None) -> None:
    """Asks people what becomes of a used credit whose amount a cancelled order fixed."""
    asked = system_request("ask", credit.pk, order.pk)
    if not request_earlier(asked):
        request_record(asked, credit=credit.pk)
    review_begin(
        credit,
        _("Order %(order)s, which fixed the amount, was cancelled after part of the credit paid another order.")
        % {"order": order.number},
        credit.statement_id,
        actor,
    )


def review_end(credit: Credit) -> None:
    """Takes the flag away."""
    credit.review_since, credit.review_reason, credit.review_statement = None, "", None
    credit.save(update_fields=["review_since", "review_reason", "review_statement"])


def payers_of(contract: Contract, order: Order, now: datetime.datetime) -> list[Payer]:
    """The contract's credits that can pay this order, with what each has left."""
    before = Q(year__ends_on__lte=order.ordered_on)
    if order.kind == OrderKind.RENEWAL:
        before = Q(year__starts_on__lte=order.ordered_on)
    credits = list(
        Credit.objects.filter(
            before,
            year__contract=contract,
            state=CreditState.APPROVED,
            review_since=None,
            currency=order.currency,
        ).select_related("year__contract", "terms")
    )
    balances = credit_balances(credits=credits)
    payers = []
    for credit in credits:
        expires_at = credit_expires_at(credit=credit)
        available = balances[credit.pk].available
        if available > 0 and credit.approved_at is not None and (expires_at is None or expires_at > now):
            payers.append(Payer(credit.pk, credit.priority, expires_at, credit.approved_at, available))
    return payers


def nothing_to_apply(order: Order, room: int) -> DomainError:
    """Why no credit pays any of this order."""
    if room == 0:
        return DomainError(
            _("Order %(order)s of %(amount)s takes no further credit: its cap is reached.")
            % {
                "order": order.number,
                "amount": Money(order.amount_minor, order.currency).format(get_language() or "en"),
            },
            code="nothing_to_apply",
        )
    return DomainError(
        _("No approved credit of this contract can pay order %(order)s.") % {"order": order.number},
        code="nothing_to_apply",
    )
