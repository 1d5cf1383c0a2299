"""Proves the ledger: every hash, every link, every sum, every statement it names, and the credits that lean on it.

One pass over transactions and one over postings, in the order of the chains, so memory stays small at any size.
"""

import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

from django.db import connection, transaction
from django.db.models import Func, TextField

from yoco.contracts.models import CreditBase, Order
from yoco.credits.chain import GENESIS, Entry, Line, entry_hash
from yoco.credits.models import AccountKind, Credit, CreditState, LedgerTransaction, Posting
from yoco.credits.selectors import credit_minor_of

ROWS_AT_ONCE = 5000


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
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            # Every row of both cursors is read, so sorting all at once, in memory, beats an index scan in order.
            cursor.execute("SET LOCAL cursor_tuple_fraction = 1; SET LOCAL work_mem = '64MB'")
    result = Verification()
    sums: dict[tuple[str, str], int] = defaultdict(int)
    orders: dict[str, int] = defaultdict(int)
    head = ("", 0, GENESIS)
    statements = _statement_hashes()
    postings = _postings_by_transaction(contract_id)
    following = next(postings, None)
    for row in _transactions(contract_id):
        entry, version, stored, sealed = row
        name = f"transaction {entry.id} (contract {entry.contract}, number {entry.sequence})"
        lines: list[Line] = []
        if following is not None and following[0] == entry.id:
            lines = following[1]
            following = next(postings, None)
        if head[0] != entry.contract:
            head = (entry.contract, 0, GENESIS)
        for reason in _faults(entry, version, stored, sealed, lines, head, statements):
            result.broken.append(Broken(name, reason))
        head = (entry.contract, entry.sequence, stored)
        result.heads[entry.contract] = stored
        result.transactions += 1
        result.postings += len(lines)
        for line in lines:
            sums[line.credit, line.account] += line.minor
            if line.order is not None and line.account == AccountKind.APPLIED:
                orders[line.order] += line.minor
    if following is not None:
        result.broken.append(Broken(f"transaction {following[0]}", "has postings but is missing"))
    if contract_id is None and (strays := Posting.objects.count() - result.postings):
        result.broken.append(Broken("postings", f"{strays} belong to no transaction or account"))
    result.broken += _credits_broken(contract_id, sums, statements)
    result.broken += _orders_broken(contract_id, orders)
    result.seconds = time.perf_counter() - started
    return result


def _statement_hashes() -> dict[str, str]:
    """The hash of every statement by its id. Loaded apart, because a join would hide what names a missing statement."""
    statements = Credit._meta.get_field("statement").remote_field.model._default_manager
    return dict(statements.values_list(_Id("pk"), "sha256"))


class _Id(Func):
    """A UUID column as the text that is hashed, made by the database: UUID objects are slow to hash and compare."""

    output_field = TextField()

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="(%(expressions)s)::text", **context)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        parts = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
        template = " || '-' || ".join(f"substr(%(expressions)s, {start}, {size})" for start, size in parts)
        return self.as_sql(compiler, connection, template=template, **context)


class _Timestamp(Func):
    """A time as `chain.timestamp` has it, made by the database."""

    output_field = TextField()

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = """to_char(%(expressions)s AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"')"""
        return self.as_sql(compiler, connection, template=template, **context)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        # Stored as text in UTC, the fraction left out where it is zero.
        template = "substr(replace(%(expressions)s, ' ', 'T') || '.000000', 1, 26) || '+00:00'"
        return self.as_sql(compiler, connection, template=template, **context)


def _transactions(contract_id: uuid.UUID | None) -> Iterator[tuple[Entry, int, str, bool]]:
    rows = LedgerTransaction.objects.order_by("contract_id", "sequence")
    if contract_id is not None:
        rows = rows.filter(contract_id=contract_id)
    for *entry, version, stored, seal in rows.values_list(
        _Id("id"),
        _Id("contract_id"),
        "sequence",
        "kind",
        "idempotency_key",
        "request_hash",
        _Timestamp("effective_at"),
        _Timestamp("recorded_at"),
        _Id("statement_id"),
        "statement_sha256",
        _Id("actor_id"),
        "reason",
        _Id("reverses_id"),
        "previous_hash",
        "version",
        "hash",
        "seal__transaction_id",
    ).iterator(chunk_size=ROWS_AT_ONCE):
        yield Entry._make(entry), version, stored, seal is not None


def _postings_by_transaction(contract_id: uuid.UUID | None) -> Iterator[tuple[str, list[Line]]]:
    rows = Posting.objects.order_by("transaction__contract_id", "transaction__sequence", "transaction_id", "line")
    if contract_id is not None:
        rows = rows.filter(transaction__contract_id=contract_id)
    values: Iterator[tuple[Any, ...]] = rows.values_list(
        _Id("transaction_id"), "line", "account__kind", "account__currency", "minor", _Id("credit_id"), _Id("order_id")
    ).iterator(chunk_size=ROWS_AT_ONCE)
    for transaction_id, group in groupby(values, key=itemgetter(0)):
        yield transaction_id, [Line._make(row[1:]) for row in group]


def _faults(
    entry: Entry,
    version: int,
    stored: str,
    sealed: bool,
    lines: list[Line],
    head: tuple[str, int, str],
    statements: dict[str, str],
) -> Iterator[str]:
    """What does not hold in one transaction."""
    if entry.sequence != head[1] + 1:
        yield f"expected number {head[1] + 1} of this contract: a row is missing or was inserted"
    if entry.previous_hash != head[2]:
        yield "does not name the hash of the transaction before it"
    try:
        if entry_hash(version, entry, lines) != stored:
            yield "its content does not match its hash"
    except ValueError as unknown:
        yield str(unknown)
    if not sealed:
        yield "has no seal"
    if len(lines) < 2:
        yield "has fewer than two postings"
    totals: dict[str, int] = defaultdict(int)
    for line in lines:
        totals[line.currency] += line.minor
    for currency, total in totals.items():
        if total:
            yield f"its postings in {currency} sum to {total}, not zero"
    if statements.get(entry.statement) != entry.statement_sha256:
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
    orders = Order.objects.filter(contract=contract_id) if contract_id is not None else Order.objects.all()
    amounts = dict(orders.order_by().values_list(_Id("pk"), "amount_minor"))
    for order_id, minor in paid.items():
        amount = amounts.get(order_id)
        if amount is None:
            yield Broken(f"order {order_id}", "was paid by credits but is missing")
        elif not 0 <= minor <= amount:
            yield Broken(f"order {order_id}", f"was paid {minor} of {amount} by credits")
