"""Writing the ledger. Only the services of this app call it, inside their transaction and under the contract's lock."""

import hashlib
import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection
from django.utils import timezone
from django.utils.translation import gettext as _

from yoco.accounts.models import User
from yoco.contracts.models import Contract
from yoco.core.ids import uuid7
from yoco.core.problem import DomainError
from yoco.credits.chain import GENESIS, VERSION, Entry, Line, entry_hash
from yoco.credits.grounds import grounds_text
from yoco.credits.models import (
    AccountKind,
    Credit,
    LedgerAccount,
    LedgerRequest,
    LedgerTransaction,
    Posting,
    Seal,
    TransactionKind,
)


def contract_lock(contract_id: uuid.UUID) -> Contract:
    """Makes every writer of one contract's books wait for its turn, until the end of the transaction.

    PostgreSQL locks the contract's row (foreign keys to it stay free); SQLite's IMMEDIATE transaction already holds the
    only write lock there is.
    """
    if not connection.in_atomic_block:
        raise RuntimeError("The ledger is written inside a transaction only.")
    return Contract.objects.select_for_update(no_key=True).get(pk=contract_id)


def digest(value: object) -> str:
    """SHA-256 of a JSON value with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked, under the key that makes a retry recognisable."""

    key: str
    action: str
    hash: str


def request_of(*, action: str, key: str | None, natural: str, **asked: object) -> Request:
    """The request under the client's `key`, or under the `natural` key of an action that happens once."""
    if key is not None and not 1 <= len(key) <= 100:
        raise DomainError(_("An idempotency key has 1 to 100 characters."), code="bad_key")
    return Request(
        key=f"client:{key}" if key is not None else natural,
        action=action,
        hash=digest({"action": action, **asked}),
    )


def request_earlier(request: Request) -> LedgerRequest | None:
    """The accepted request with the same key and content, if any.

    Raises DomainError if the client's key was used for another request. A natural key with other content is left to the
    state of the credit, which refuses with a more useful sentence.
    """
    earlier = LedgerRequest.objects.filter(pk=request.key).first()
    if earlier is None or earlier.request_hash == request.hash:
        return earlier
    if request.key.startswith("client:"):
        raise DomainError(
            _("This idempotency key was already used for a different request; use a new key."), code="key_reused"
        )
    return None


def request_record(request: Request, **result: object) -> None:
    """Remembers an accepted request and the ids of what it made."""
    LedgerRequest.objects.create(
        key=request.key,
        action=request.action,
        request_hash=request.hash,
        result={name: str(value) if isinstance(value, uuid.UUID) else value for name, value in result.items()},
    )


@dataclass(frozen=True, slots=True)
class Movement:
    """An amount that one credit moves between two accounts: two postings that sum to zero."""

    credit: Credit
    source: AccountKind
    target: AccountKind
    minor: int
    order_id: uuid.UUID | None = None


def transaction_post(
    *,
    contract: Contract,
    kind: TransactionKind,
    request: Request,
    movements: Iterable[Movement],
    statement_id: uuid.UUID,
    statement_sha256: str,
    actor: User | None,
    reason: str = "",
    effective_at: datetime | None = None,
    reverses: LedgerTransaction | None = None,
    grounds: dict[str, Any] | None = None,
) -> LedgerTransaction:
    """Appends one transaction to the contract's chain, with its postings, then its seal.

    The caller holds `contract_lock`. The database refuses what does not balance or would run below zero.
    """
    now = timezone.now()
    last = (
        LedgerTransaction.objects.filter(contract=contract).order_by("-sequence").values("sequence", "hash").first()
    ) or {"sequence": 0, "hash": GENESIS}
    entry = LedgerTransaction(
        id=uuid7(),
        contract=contract,
        sequence=last["sequence"] + 1,
        kind=kind,
        idempotency_key=request.key,
        request_hash=request.hash,
        effective_at=effective_at or now,
        recorded_at=now,
        statement_id=statement_id,
        statement_sha256=statement_sha256,
        actor=actor,
        reason=reason,
        reverses=reverses,
        grounds=grounds_text(grounds) if grounds is not None else None,
        version=VERSION,
        previous_hash=last["hash"],
    )
    postings: list[Posting] = []
    lines: list[Line] = []
    for movement in movements:
        for account_kind, minor in ((movement.source, -movement.minor), (movement.target, movement.minor)):
            credit = movement.credit
            account, _created = LedgerAccount.objects.get_or_create(
                contract=contract, currency=credit.currency, kind=account_kind
            )
            number = len(postings) + 1
            postings.append(
                Posting(
                    transaction=entry,
                    line=number,
                    account=account,
                    minor=minor,
                    credit=credit,
                    order_id=movement.order_id,
                )
            )
            order = str(movement.order_id) if movement.order_id else None
            lines.append(Line(number, account_kind.value, credit.currency, minor, str(credit.pk), order))
    entry.hash = entry_hash(VERSION, entry_of(entry), lines)
    entry.save(force_insert=True)
    Posting.objects.bulk_create(postings)
    Seal.objects.create(transaction=entry)
    return entry


def entry_of(row: LedgerTransaction) -> Entry:
    """The hashed form of a stored transaction."""
    return Entry(
        id=str(row.pk),
        contract=str(row.contract_id),
        sequence=row.sequence,
        kind=str(row.kind),
        idempotency_key=row.idempotency_key,
        request_hash=row.request_hash,
        effective_at=row.effective_at,
        recorded_at=row.recorded_at,
        statement=str(row.statement_id),
        statement_sha256=row.statement_sha256,
        actor=str(row.actor_id) if row.actor_id else None,
        reason=row.reason,
        reverses=str(row.reverses_id) if row.reverses_id else None,
        previous_hash=row.previous_hash,
        grounds=row.grounds,
    )
