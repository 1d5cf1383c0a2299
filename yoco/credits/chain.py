"""The hashed form of a ledger transaction. Pure; docs/ledger.md states it for people who check a chain on their own.

hash = SHA-256(version byte ‖ UTF-8 of the JSON array that `canonical` returns)
"""

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

VERSION = 1
GENESIS = "0" * 64


class Line(NamedTuple):
    """One posting as it is hashed: by the account's kind and currency, not by its row."""

    line: int
    account: str
    currency: str
    minor: int
    credit: str
    order: str | None


class Entry(NamedTuple):
    """One transaction as it is hashed. Ids are lower-case UUID text with dashes, times are those of `timestamp`."""

    id: str
    contract: str
    sequence: int
    kind: str
    idempotency_key: str
    request_hash: str
    effective_at: str
    recorded_at: str
    statement: str
    statement_sha256: str
    actor: str | None
    reason: str
    reverses: str | None
    previous_hash: str


def timestamp(at: datetime) -> str:
    """UTC with microseconds, as in 2027-09-01T00:00:00.000000+00:00."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def canonical(entry: Entry, lines: Iterable[Line]) -> bytes:
    """The JSON array that is hashed: no spaces, UTF-8 (not \\u-escaped), the fields in their order, then the postings
    by line."""
    return msgspec.json.encode([*entry, [*lines]])


def entry_hash(version: int, entry: Entry, lines: Iterable[Line]) -> str:
    """The hash of one transaction, hexadecimal. Raises ValueError for a version this code does not know."""
    if version != VERSION:
        raise ValueError(f"unknown version {version} of the hashed form")
    return hashlib.sha256(bytes([version]) + canonical(entry, lines)).hexdigest()
