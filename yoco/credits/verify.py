"""Proves the ledger: every hash, every link, every sum, every statement it names, and the credits that lean on it.

One pass over transactions and one over postings, in the order of the chains, so memory stays small at any size.
"""

import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from django.db import transaction

from yoco.contracts.models import CreditBase
from yoco.credits.chain import GENESIS, array_hash
from yoco.credits.models import AccountKind, Credit, CreditState, Posting
from yoco.credits.rows import (
    HASHED_FIELDS,
    ROWS_AT_ONCE,
    StoredPosting,
    StoredTransaction,
    orders_stored,
    statements_stored,
    transactions_stored,
)
from yoco.credits.selectors import credit_minor_of


@dataclass(frozen=True, slots=True)
class Broken:
    """One row that does not hold: which, and why."""

    row: str
    reason: str

    def __str__(self) -> str:
        return f"{self.row}: {self.reason}"


@dataclass(slots=True)
class Verification:
    """What was checked and what does not hold, first things first."""

    transactions: int = 0
    postings: int = 0
    seconds: float = 0.0
    heads: dict[str, str] = field(default_factory=dict)
    broken: list[Broken] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether nothing broken was found."""
        return not self.broken


@transaction.atomic
def ledger_verify(*, contract_id: uuid.UUID | None = None) -> Verification:
    """Checks one contract's ledger, or all. Reads only.

    `heads` gives the last hash of each contract's chain: compare it with one kept elsewhere (each statement of account
    prints it), because rows cut from the end of a chain leave no other trace in it.
    """
    started = time.perf_counter()
    result = Verification()
    sums: dict[tuple[str, str], int] = defaultdict(int)
    orders: dict[str, int] = defaultdict(int)
    contract, sequence, head = "", 0, GENESIS
    statements = dict(statements_stored())
    for row, lines in transactions_stored(contract_id):
        if contract != row.contract:
            contract, sequence, head = row.contract, 0, GENESIS
        for reason in _faults(row, lines, sequence + 1, head, statements):
            name = f"transaction {row.id} (contract {row.contract}, number {row.sequence})"
            result.broken.append(Broken(name, reason))
        sequence, head = row.sequence, row.hash
        result.heads[contract] = head
        result.transactions += 1
        result.postings += len(lines)
        for _line, account, _currency, minor, credit, order in lines:
            sums[credit, account] += minor
            if order is not None and account == "applied":
                orders[order] += minor
    if contract_id is None and (strays := Posting.objects.count() - result.postings):
        result.broken.append(Broken("postings", f"{strays} belong to no transaction or account"))
    result.broken += _credits_broken(contract_id, sums, statements)
    result.broken += _orders_broken(contract_id, orders)
    result.seconds = time.perf_counter() - started
    return result


def _faults(
    row: StoredTransaction, lines: list[StoredPosting], sequence: int, head: str, statements: dict[str, str]
) -> Iterator[str]:
    """What does not hold in one transaction that should have this sequence and follow this hash."""
    if row.sequence != sequence:
        yield f"expected number {sequence} of this contract: a row is missing or was inserted"
    if row.previous_hash != head:
        yield "does not name the hash of the transaction before it"
    try:
        if array_hash(row.version, [*row[:HASHED_FIELDS], lines]) != row.hash:
            yield "its content does not match its hash"
    except (TypeError, ValueError) as unreadable:
        yield f"its content cannot be hashed: {unreadable}"
    if not row.sealed:
        yield "has no seal"
    if len(lines) < 2:
        yield "has fewer than two postings"
    totals: dict[str, int] = {}
    for line in lines:
        totals[line[2]] = totals.get(line[2], 0) + line[3]
    for currency, total in totals.items():
        if total:
            yield f"its postings in {currency} sum to {total}, not zero"
    if statements.get(row.statement) != row.statement_sha256:
        yield "its statement is missing or has another hash"


def _credits_broken(
    contract_id: uuid.UUID | None, sums: dict[tuple[str, str], int], statements: dict[str, str]
) -> Iterator[Broken]:
    """Credits whose state and books contradict each other."""
    credits = Credit.objects.select_related("year", "terms", "amount_order").order_by("proposed_at", "id")
    if contract_id is not None:
        credits = credits.filter(year__contract_id=contract_id)
    for credit in credits.iterator(chunk_size=ROWS_AT_ONCE):
        name = f"credit {credit.pk}"
        state = CreditState(credit.state)
        books = {kind: sums.get((str(credit.pk), kind.value), 0) for kind in AccountKind}
        books[AccountKind.GRANTED] *= -1
        if statements.get(str(credit.statement_id)) != credit.statement_sha256:
            yield Broken(name, "its statement is missing or has another hash")
        for kind, minor in books.items():
            if minor < 0:
                yield Broken(name, f"its account “{kind.value}” is below zero: {minor}")
        if state in (CreditState.PROPOSED, CreditState.REVERSED) and any(books.values()):
            yield Broken(name, f"is {state.value}, but its books are not empty")
        if state != CreditState.ISSUED and books[AccountKind.AWAITING]:
            yield Broken(name, f"is {state.value}, but an amount still awaits approval")
        if state in (CreditState.ISSUED, CreditState.EXPIRED) and books[AccountKind.AVAILABLE]:
            yield Broken(name, f"is {state.value}, but an amount is still available")
        if _grant_expected(credit, state) and not books[AccountKind.GRANTED]:
            yield Broken(name, f"is {state.value}, but the transaction that granted its amount is missing")


def _grant_expected(credit: Credit, state: CreditState) -> bool:
    """Whether the books must show an amount for this credit."""
    if state in (CreditState.PROPOSED, CreditState.REVERSED):
        return False
    if credit.base == CreditBase.YEAR_FEES:
        base = credit.year.fees_minor if credit.issued_at else None
    else:
        base = credit.amount_order.amount_minor if credit.amount_order else None
    return base is not None and credit_minor_of(terms=credit.terms, base_minor=base) > 0


def _orders_broken(contract_id: uuid.UUID | None, paid: dict[str, int]) -> Iterator[Broken]:
    """Orders of which credits pay more than there is, or less than nothing."""
    missing = dict(paid)
    for order, amount in orders_stored(contract_id):
        minor = missing.pop(order, 0)
        if not 0 <= minor <= amount:
            yield Broken(f"order {order}", f"was paid {minor} of {amount} by credits")
    for order in missing:
        yield Broken(f"order {order}", "was paid by credits but is missing")
