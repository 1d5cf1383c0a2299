"""The hashed form of a ledger transaction. Pure; docs/ledger.md states it for people who check a chain on their own.

hash = SHA-256(version byte ‖ UTF-8 of the JSON array that `canonical` returns)

Version 2 ends the array with the grounds of what the transaction grants; version 1, of older rows, does not have them.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

VERSION = 2
VERSIONS = (1, 2)
GENESIS = "0" * 64


@dataclass(frozen=True, slots=True)
class Line:
    """One posting as it is hashed: by the account's kind and currency, not by its row."""

    line: int
    account: str
    currency: str
    minor: int
    credit: str
    order: str | None


@dataclass(frozen=True, slots=True)
class Entry:
    """One transaction as it is hashed. Ids are lower-case UUID text with dashes."""

    id: str
    contract: str
    sequence: int
    kind: str
    idempotency_key: str
    request_hash: str
    effective_at: datetime
    recorded_at: datetime
    statement: str
    statement_sha256: str
    actor: str | None
    reason: str
    reverses: str | None
    previous_hash: str
    grounds: str | None = None


def timestamp(at: datetime) -> str:
    """UTC with microseconds, as in 2027-09-01T00:00:00.000000+00:00."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def canonical(version: int, entry: Entry, lines: Iterable[Line]) -> str:
    """The JSON array that is hashed: no spaces, text as it is, not escaped, postings by line."""
    return _encode(_array(version, entry, lines))


def entry_hash(version: int, entry: Entry, lines: Iterable[Line]) -> str:
    """The hash of one transaction, hexadecimal. Raises ValueError for a version this code does not know."""
    return text_hash(version, canonical(version, entry, lines))


def text_hash(version: int, text: str) -> str:
    """The hash of a transaction whose `canonical` text is given. Raises ValueError for an unknown version."""
    if version not in VERSIONS:
        raise ValueError(f"unknown version {version} of the hashed form")
    return hashlib.sha256(bytes((version,)) + text.encode()).hexdigest()


def _array(version: int, entry: Entry, lines: Iterable[Line]) -> list[object]:
    array: list[object] = [
        entry.id,
        entry.contract,
        entry.sequence,
        entry.kind,
        entry.idempotency_key,
        entry.request_hash,
        timestamp(entry.effective_at),
        timestamp(entry.recorded_at),
        entry.statement,
        entry.statement_sha256,
        entry.actor,
        entry.reason,
        entry.reverses,
        entry.previous_hash,
        [[p.line, p.account, p.currency, p.minor, p.credit, p.order] for p in lines],
    ]
    return array if version == 1 else [*array, entry.grounds]
