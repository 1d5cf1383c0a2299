"""The ledger's rows as the chain hashes them, formed by the database itself: ids with dashes, times in microseconds.

Proving a ledger means hashing every row. Going through model fields would cost several times the hashing, so this is
the one place in the app that reads with SQL of its own.
"""

import uuid
from collections.abc import Iterator
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

from django.db import connection

ROWS_AT_ONCE = 5000


class StoredTransaction(NamedTuple):
    """A row of the ledger: the hashed fields in their order, then what stands beside them."""

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
    version: int
    hash: str
    sealed: bool


HASHED_FIELDS = StoredTransaction._fields.index("version")

# A posting in its hashed form: line, account, currency, minor, credit, order.
StoredPosting = tuple[int, str, str, int, str, str | None]


def transactions_stored(
    contract_id: uuid.UUID | None,
) -> Iterator[tuple[StoredTransaction, list[StoredPosting]]]:
    """Every transaction, or those of one contract, in the order of the chains, each with its postings by line."""
    accounts = {
        account: (kind, currency)
        for account, kind, currency in _rows(f"SELECT {_id('id')}, kind, currency FROM credits_ledgeraccount")  # noqa: S608
    }
    statement = f"""
        SELECT {_id("t.id")}, {_id("t.contract_id")}, t.sequence, t.kind, t.idempotency_key, t.request_hash,
               {_time("t.effective_at")}, {_time("t.recorded_at")}, {_id("t.statement_id")}, t.statement_sha256,
               {_id("t.actor_id")}, t.reason, {_id("t.reverses_id")}, t.previous_hash, t.version, t.hash,
               s.transaction_id IS NOT NULL
        FROM credits_ledgertransaction t LEFT JOIN credits_seal s ON s.transaction_id = t.id
        {_of_contract(contract_id)}
        ORDER BY t.contract_id, t.sequence"""  # noqa: S608 (no value is spliced in)
    rows = map(StoredTransaction._make, _rows(statement, *_stored(contract_id)))
    while chunk := list(islice(rows, ROWS_AT_ONCE)):
        postings: dict[str, list[StoredPosting]] = {}
        for transaction_id, line, account, minor, credit, order in _postings([row.id for row in chunk]):
            kind, currency = accounts.get(account, ("missing", "missing"))
            posting = (line, kind, currency, minor, credit, order)
            if lines := postings.get(transaction_id):
                lines.append(posting)
            else:
                postings[transaction_id] = [posting]
        for row in chunk:
            yield row, sorted(postings.get(row.id, ()), key=itemgetter(0))


def _postings(transaction_ids: list[str]) -> Iterator[tuple[Any, ...]]:
    """The postings of these transactions, in no order."""
    columns = f"{_id('transaction_id')}, line, {_id('account_id')}, minor, {_id('credit_id')}, {_id('order_id')}"
    parameters: list[Any] = [transaction_ids]
    where = "= ANY(%s::uuid[])"
    if connection.vendor == "sqlite":
        parameters = [pk.replace("-", "") for pk in transaction_ids]
        where = f"IN ({', '.join(['%s'] * len(parameters))})"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM credits_posting WHERE transaction_id {where}", parameters)  # noqa: S608
        yield from cursor.fetchall()


def orders_stored(contract_id: uuid.UUID | None) -> Iterator[tuple[str, int]]:
    """Every order, or those of one contract: id and amount in minor units."""
    statement = f"""
        SELECT {_id("t.id")}, t.amount_minor FROM contracts_order t {_of_contract(contract_id)}"""  # noqa: S608
    yield from _rows(statement, *_stored(contract_id))


def statements_stored() -> Iterator[tuple[str, str]]:
    """Every statement: id and hash. Read apart, because a join would hide what names a missing statement."""
    yield from _rows(f"SELECT {_id('id')}, sha256 FROM guarantee_statement")  # noqa: S608 (as above)


def _rows(statement: str, *parameters: Any) -> Iterator[tuple[Any, ...]]:
    with connection.chunked_cursor() as cursor:
        cursor.execute(statement, parameters)
        while rows := cursor.fetchmany(ROWS_AT_ONCE):
            yield from rows


def _of_contract(contract_id: uuid.UUID | None) -> str:
    return "" if contract_id is None else "WHERE t.contract_id = %s"


def _stored(contract_id: uuid.UUID | None) -> list[Any]:
    if contract_id is None:
        return []
    return [contract_id if connection.vendor == "postgresql" else contract_id.hex]


def _id(column: str) -> str:
    """SQL for an id as text with dashes."""
    if connection.vendor == "postgresql":
        return f"{column}::text"
    parts = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
    return " || '-' || ".join(f"substr({column}, {start}, {length})" for start, length in parts)


def _time(column: str) -> str:
    """SQL for a time as `chain.timestamp` writes it. SQLite: a text in another form than ours comes back as it is."""
    if connection.vendor == "postgresql":
        return f"""to_char({column} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"')"""
    day_and_time = f"substr({column}, 1, 10) || 'T' || substr({column}, 12, 8)"
    return f"""CASE length({column})
        WHEN 26 THEN {day_and_time} || substr({column}, 20, 7) || '+00:00'
        WHEN 19 THEN {day_and_time} || '.000000+00:00'
        ELSE {column} END"""
