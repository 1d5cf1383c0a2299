"""Proves the ledger: every hash, every link, every sum, every statement it names, and the credits that lean on it.

One pass over the chains, and sums that the database forms, so memory stays small at any size. What a credit says about
itself is held against its entries in `yoco.credits.verify_credits`.
"""

import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from django.db import transaction

from yoco.contracts.models import GuaranteeTerms
from yoco.credits.amounts import order_cap_minor
from yoco.credits.chain import GENESIS, text_hash
from yoco.credits.models import Posting
from yoco.credits.rows import (
    StoredTransaction,
    memory_widen,
    paid_stored,
    statements_stored,
    transactions_stored,
    unbalanced_stored,
)
from yoco.credits.verify_credits import credits_faults


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
    memory_widen()
    statements = dict(statements_stored())
    contract, expected, head = "", 1, GENESIS
    for row in transactions_stored(contract_id):
        pk, of_contract, sequence, statement, sha256, previous, version, row_hash, sealed, lines, balanced, text = row
        if contract != of_contract:
            contract, expected, head = of_contract, 1, GENESIS
        if not (
            sequence == expected
            and previous == head
            and sealed
            and lines >= 2
            and statements.get(statement) == sha256
            and balanced
            and not _hash_fault(version, text, row_hash)
        ):
            name = f"transaction {pk} (contract {of_contract}, number {sequence})"
            faults = _faults(StoredTransaction._make(row), expected, head, statements)
            result.broken += [Broken(name, reason) for reason in faults]
        expected, head = sequence + 1, row_hash
        result.heads[contract] = head
        result.transactions += 1
        result.postings += lines
    if contract_id is None and (strays := Posting.objects.count() - result.postings):
        result.broken.append(Broken("postings", f"{strays} belong to no transaction"))
    result.broken += [
        Broken(f"credit {pk}", reason) for pk, reason in credits_faults(contract_id=contract_id, statements=statements)
    ]
    result.broken += _orders_broken(contract_id)
    result.seconds = time.perf_counter() - started
    return result


def _hash_fault(version: int, text: str, expected: str) -> str:
    try:
        return "" if text_hash(version, text) == expected else "its content does not match its hash"
    except (TypeError, ValueError, AttributeError) as unreadable:
        return f"its content cannot be hashed: {unreadable}"


def _faults(row: StoredTransaction, sequence: int, head: str, statements: dict[str, str]) -> Iterator[str]:
    """What does not hold in one transaction that should have this sequence and follow this hash."""
    if row.sequence != sequence:
        yield f"expected number {sequence} of this contract: a row is missing or was inserted"
    if row.previous_hash != head:
        yield "does not name the hash of the transaction before it"
    if fault := _hash_fault(row.version, row.text, row.hash):
        yield fault
    if not row.sealed:
        yield "has no seal"
    if row.lines < 2:
        yield "has fewer than two postings"
    if not row.balanced:
        for currency, total in unbalanced_stored(row.id):
            yield f"its postings in {currency} sum to {total}, not zero"
    if statements.get(row.statement) != row.statement_sha256:
        yield "its statement is missing or has another hash"


def _orders_broken(contract_id: uuid.UUID | None) -> Iterator[Broken]:
    """Orders of which credits pay more than their terms' cap allows, or less than nothing."""
    caps: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    versions = GuaranteeTerms.objects.order_by("-effective_on")
    if contract_id is not None:
        versions = versions.filter(contract=contract_id)
    for contract, day, num, den in versions.values_list(
        "contract_id", "effective_on", "credit_cap_num", "credit_cap_den"
    ):
        caps[str(contract)].append((day.isoformat(), num, den))
    for paid in paid_stored(contract_id):
        name = f"order {paid.order}"
        if paid.contract is None or paid.amount is None or paid.ordered_on is None:
            yield Broken(name, "was paid by credits but is missing")
            continue
        if not 0 <= paid.minor <= paid.amount:
            yield Broken(name, f"was paid {paid.minor} of {paid.amount} by credits")
            continue
        terms = caps[paid.contract]
        _day, num, den = next((version for version in terms if version[0] <= paid.ordered_on), terms[-1])
        if paid.minor > (cap := order_cap_minor(paid.amount, num, den)):
            yield Broken(name, f"was paid {paid.minor} by credits, more than its cap of {cap}")
