"""Reading credits and their books. Every amount is a sum of sealed postings; nothing here writes."""

import datetime
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from django.db.models import Q, QuerySet, Sum
from django.utils.translation import gettext as _

from yoco.contracts.models import Contract, CreditBase, CreditExpiry, GuaranteeTerms, Order, OrderKind, OrderState
from yoco.core.clock import local_midnight
from yoco.core.money import Money, Rounding
from yoco.core.problem import DomainError
from yoco.credits.amounts import credit_minor, last_usable_day, order_cap_minor
from yoco.credits.chain import GENESIS
from yoco.credits.models import AccountKind, Credit, CreditState, LedgerTransaction, Posting


@dataclass(frozen=True, slots=True)
class CreditBalance:
    """The books of one credit at one moment, in minor units of its currency.

    granted = awaiting + available + applied + forfeited, always.
    """

    currency: str
    granted: int = 0
    awaiting: int = 0
    available: int = 0
    applied: int = 0
    forfeited: int = 0

    @property
    def money(self) -> dict[str, Money]:
        """The same amounts for display."""
        return {kind.value: Money(getattr(self, kind.value), self.currency) for kind in AccountKind}


def postings_counted(
    *, as_of: datetime.datetime | None = None, known_at: datetime.datetime | None = None
) -> QuerySet[Posting]:
    """The postings that count: sealed, in effect at `as_of` and already written at `known_at`."""
    rows = Posting.objects.filter(transaction__seal__isnull=False)
    if as_of is not None:
        rows = rows.filter(transaction__effective_at__lte=as_of)
    if known_at is not None:
        rows = rows.filter(transaction__recorded_at__lte=known_at)
    return rows


def credit_balances(
    *,
    credits: Iterable[Credit],
    as_of: datetime.datetime | None = None,
    known_at: datetime.datetime | None = None,
) -> dict[uuid.UUID, CreditBalance]:
    """The balance of each credit, by its id, in one query."""
    rows = {credit.pk: credit for credit in credits}
    sums: dict[uuid.UUID, dict[str, int]] = {pk: {} for pk in rows}
    for pk, kind, minor in (
        postings_counted(as_of=as_of, known_at=known_at)
        .filter(credit__in=list(rows))
        .values_list("credit_id", "account__kind")
        .annotate(minor=Sum("minor"))
        .order_by()
    ):
        sums[pk][kind] = -int(minor) if kind == AccountKind.GRANTED else int(minor)
    return {pk: CreditBalance(currency=rows[pk].currency, **kinds) for pk, kinds in sums.items()}


def credit_balance(
    *, credit: Credit, as_of: datetime.datetime | None = None, known_at: datetime.datetime | None = None
) -> CreditBalance:
    """The balance of one credit."""
    return credit_balances(credits=[credit], as_of=as_of, known_at=known_at)[credit.pk]


def credits_of_contract(*, contract: Contract) -> QuerySet[Credit]:
    """All credits of a contract, with what a page shows beside them."""
    return (
        Credit.objects.filter(year__contract=contract)
        .select_related("year__contract", "terms", "issued_by", "approved_by", "amount_order")
        .order_by("year__number", "proposed_at", "id")
    )


def credit_of_year(*, year_id: uuid.UUID) -> Credit | None:
    """The live credit of a contract year, if any."""
    return (
        Credit.objects.filter(year_id=year_id)
        .exclude(state=CreditState.REVERSED)
        .select_related("year__contract", "terms")
        .first()
    )


def credit_expires_at(*, credit: Credit) -> datetime.datetime | None:
    """The first instant at which the credit can no longer pay, or None while nothing ends it."""
    contract, terms = credit.year.contract, credit.terms
    zone = contract.time_zone
    # An order placed in the year that fell short, or later, renews the contract; a cancelled one does not.
    renewed = (
        terms.credit_expiry == CreditExpiry.CONTRACT_END
        and Order.objects.filter(
            contract=contract,
            kind=OrderKind.RENEWAL,
            state=OrderState.RECORDED,
            ordered_on__gte=credit.year.starts_on,
        ).exists()
    )
    issued_on = local_date(credit.issued_at, zone) if credit.issued_at else None
    day = last_usable_day(
        expiry=terms.credit_expiry,
        expires_on=terms.credit_expires_on,
        months=terms.credit_expiry_months,
        issued_on=issued_on,
        contract_ends_on=contract.ends_on,
        # The last year is closed after the contract's end; its credit must not be dead by then.
        usable_until=local_date(credit.proposed_at, zone) + datetime.timedelta(days=terms.dispute_window_days),
        renewed=renewed,
    )
    return local_midnight(day + datetime.timedelta(days=1), zone) if day is not None else None


def local_date(at: datetime.datetime, time_zone: str) -> datetime.date:
    """The calendar day of an instant in an IANA zone."""
    return at.astimezone(ZoneInfo(time_zone)).date()


def credit_base_order(*, credit: Credit) -> Order | None:
    """With base `next_order`: the first order placed after the year that fell short and not cancelled.

    A renewal counts from that year's start on: it is often signed before the year ends.
    """
    return (
        Order.objects.filter(
            Q(ordered_on__gte=credit.year.ends_on) | Q(kind=OrderKind.RENEWAL, ordered_on__gte=credit.year.starts_on),
            contract_id=credit.year.contract_id,
            currency=credit.currency,
            state=OrderState.RECORDED,
        )
        .order_by("ordered_on", "id")
        .first()
    )


def credit_amount_expected(*, credit: Credit) -> int | None:
    """What the credit is or would be worth, in minor units; None while its base is not known."""
    granted = credit_balance(credit=credit).granted
    if granted:
        return granted
    if credit.base == CreditBase.YEAR_FEES:
        base = credit.year.fees_minor
    else:
        order = credit.amount_order or credit_base_order(credit=credit)
        base = order.amount_minor if order is not None else None
    return credit_minor_of(terms=credit.terms, base_minor=base) if base is not None else None


def credit_minor_of(*, terms: GuaranteeTerms, base_minor: int) -> int:
    """The credit for a base amount under the given terms, in minor units."""
    rounding: Rounding = "half_up" if terms.rounding == "half_up" else "half_even"
    return credit_minor(base_minor, terms.credit_rate_num, terms.credit_rate_den, rounding)


@dataclass(frozen=True, slots=True)
class OrderPayment:
    """What credits pay of an order, in minor units: at most `cap`, so far `paid`."""

    amount: int
    cap: int
    paid: int
    currency: str

    @property
    def room(self) -> int:
        """What credits can still pay."""
        return max(0, self.cap - self.paid)

    @property
    def due(self) -> int:
        """What the customer still owes."""
        return self.amount - self.paid


def order_payment(*, order: Order, as_of: datetime.datetime | None = None) -> OrderPayment:
    """What credits pay of an order. The cap is that of the terms in force on the order's date."""
    terms = (
        GuaranteeTerms.objects.filter(contract_id=order.contract_id, effective_on__lte=order.ordered_on)
        .order_by("-effective_on")
        .first()
        or GuaranteeTerms.objects.filter(contract_id=order.contract_id).order_by("effective_on").first()
    )
    if terms is None:
        raise DomainError(_("The contract of this order has no guarantee terms."), code="no_terms")
    paid = (
        postings_counted(as_of=as_of)
        .filter(order=order, account__kind=AccountKind.APPLIED)
        .aggregate(minor=Sum("minor"))["minor"]
    )
    return OrderPayment(
        amount=order.amount_minor,
        cap=order_cap_minor(order.amount_minor, terms.credit_cap_num, terms.credit_cap_den),
        paid=int(paid or 0),
        currency=order.currency,
    )


def transactions_of_contract(*, contract: Contract) -> QuerySet[LedgerTransaction]:
    """The contract's entries in the order of its chain, with their postings."""
    return (
        LedgerTransaction.objects.filter(contract=contract, seal__isnull=False)
        .select_related("actor", "statement")
        .defer("statement__canonical", "statement__summary")  # large, and no entry shows them
        .prefetch_related("postings__account", "postings__order", "postings__credit__year")
        .order_by("sequence")
    )


def transactions_of_credit(*, credit: Credit) -> QuerySet[LedgerTransaction]:
    """The entries that moved one credit, oldest first, with their postings."""
    ids = postings_counted().filter(credit=credit).values("transaction")
    return transactions_of_contract(contract=credit.year.contract).filter(pk__in=ids)


@dataclass(frozen=True, slots=True)
class StatementLine:
    """One movement of the balance available to the customer; `balance` is the one after it."""

    transaction: LedgerTransaction
    credit_id: uuid.UUID
    order_number: str | None
    currency: str
    minor: int
    balance: int

    @property
    def money(self) -> tuple[Money, Money]:
        """Amount and balance for display."""
        return Money(self.minor, self.currency), Money(self.balance, self.currency)


@dataclass(frozen=True, slots=True)
class AccountStatement:
    """What a customer had, what moved, what remains; minor units. Half-open: from `start` until just before `end`.

    `head` is the last hash of the contract's chain when it was drawn up. Whoever keeps it can tell later whether the
    end of the chain was cut off.
    """

    contract: Contract
    currency: str
    start: datetime.datetime
    end: datetime.datetime
    opening: int
    lines: list[StatementLine]
    closing: int
    head: str

    @property
    def money(self) -> tuple[Money, Money]:
        """Opening and closing balance for display."""
        return Money(self.opening, self.currency), Money(self.closing, self.currency)


def account_statement(
    *,
    contract: Contract,
    start: datetime.datetime,
    end: datetime.datetime,
    known_at: datetime.datetime | None = None,
) -> AccountStatement:
    """The statement of account of the credit available to a customer. Raises DomainError if `end` is before `start`."""
    if end < start:
        raise DomainError(_("The end of the statement lies before its start."), code="bad_period")
    available = postings_counted(known_at=known_at).filter(
        account__contract=contract, account__currency=contract.currency, account__kind=AccountKind.AVAILABLE
    )
    before = available.filter(transaction__effective_at__lt=start).aggregate(minor=Sum("minor"))["minor"]
    balance = opening = int(before or 0)
    lines = []
    for posting in (
        available.filter(Q(transaction__effective_at__gte=start) & Q(transaction__effective_at__lt=end))
        .select_related("transaction", "order")
        .order_by("transaction__effective_at", "transaction__sequence", "line")
    ):
        balance += posting.minor
        lines.append(
            StatementLine(
                transaction=posting.transaction,
                credit_id=posting.credit_id,
                order_number=posting.order.number if posting.order else None,
                currency=contract.currency,
                minor=posting.minor,
                balance=balance,
            )
        )
    return AccountStatement(
        contract, contract.currency, start, end, opening, lines, balance, chain_head(contract=contract)
    )


def chain_head(*, contract: Contract) -> str:
    """The hash of the contract's last ledger transaction, or the genesis hash of an empty chain."""
    last = LedgerTransaction.objects.filter(contract=contract).order_by("-sequence").values_list("hash", flat=True)
    return last.first() or GENESIS
