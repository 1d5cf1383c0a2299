"""The ledger's rows as the chain hashes them: the database itself forms the hashed text, and adds up the postings.

Proving a ledger means hashing every row. Going through model fields would cost several times the hashing, so this is
the one place in the app that reads with SQL of its own. No value is ever spliced into a statement.
"""

import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from django.db import connection

ROWS_AT_ONCE = 2000


class StoredTransaction(NamedTuple):
    """A row of the ledger. `text` is its hashed form, `lines` the number of its postings, and `balanced` whether they
    are of one currency and sum to zero."""

    id: str
    contract: str
    sequence: int
    statement: str
    statement_sha256: str
    previous_hash: str
    version: int
    hash: str
    sealed: bool
    lines: int
    balanced: bool
    text: str


class StoredGrant(NamedTuple):
    """A posting that granted an amount to a credit, with what its transaction says about the grounds."""

    credit: str
    transaction: str
    kind: str
    actor: str | None
    version: int
    grounds: str | None
    minor: int
    order: str | None


class StoredPayment(NamedTuple):
    """What credits pay of one order, in minor units; `contract` and what follows are None for a missing order."""

    order: str | None
    minor: int
    contract: str | None
    amount: int | None
    ordered_on: str | None


def transactions_stored(contract_id: uuid.UUID | None) -> Iterator[tuple[Any, ...]]:
    """Every transaction, or those of one contract, in the order of the chains, as plain `StoredTransaction` values."""
    text = " || ',' || ".join(
        [
            _typed(_id("t.id")),
            _typed(_id("t.contract_id")),
            _number("t.sequence"),
            _quoted("t.kind"),
            _quoted("t.idempotency_key"),
            _quoted("t.request_hash"),
            _typed(_time("t.effective_at")),
            _typed(_time("t.recorded_at")),
            _typed(_id("t.statement_id")),
            _quoted("t.statement_sha256"),
            _typed(_id("t.actor_id")),
            _quoted("t.reason"),
            _typed(_id("t.reverses_id")),
            _quoted("t.previous_hash"),
        ]
    )
    yield from _rows(
        f"""
        SELECT {_id("t.id")}, {_id("t.contract_id")}, t.sequence, {_id("t.statement_id")}, t.statement_sha256,
               t.previous_hash, t.version, t.hash, s.transaction_id IS NOT NULL, coalesce(p.lines, 0),
               coalesce(p.balanced, false),
               '[' || {text} || ',[' || coalesce(p.text, '') || ']'
                   || CASE t.version WHEN 1 THEN ']' ELSE ',' || {_quoted("t.grounds")} || ']' END
        FROM credits_ledgertransaction t
        LEFT JOIN credits_seal s ON s.transaction_id = t.id
        LEFT JOIN ({_postings(contract_id)}) p ON p.transaction_id = t.id
        {_of_contract(contract_id)}
        ORDER BY t.contract_id, t.sequence""",  # noqa: S608
        *_stored(contract_id) * 2,
    )


def _postings(contract_id: uuid.UUID | None) -> str:
    """SQL for the postings of each transaction: their number, and their hashed form by line."""
    parts = [
        _number("p.line"),
        'coalesce(a.text, \'"missing","missing"\')',
        _number("p.minor"),
        _typed(_id("p.credit_id")),
        _typed(_id("p.order_id")),
    ]
    joined = "'[' || " + " || ',' || ".join(parts) + " || ']'"
    accounts = (
        f"SELECT id, currency, {_quoted('kind')} || ',' || {_quoted('currency')} AS text FROM credits_ledgeraccount"  # noqa: S608
    )
    aggregate = "string_agg" if connection.vendor == "postgresql" else "group_concat"
    return f"""
        SELECT o.transaction_id, count(*) AS lines,
               sum(o.minor) = 0 AND min(o.currency) = max(o.currency) AS balanced, {aggregate}(o.posting, ',') AS text
        FROM (SELECT p.transaction_id, p.minor, a.currency, {joined} AS posting FROM credits_posting p
              LEFT JOIN ({accounts}) a ON a.id = p.account_id
              {_in_contract(contract_id)} ORDER BY p.transaction_id, p.line) o
        GROUP BY o.transaction_id"""  # noqa: S608


def unbalanced_stored(transaction_id: str) -> Iterator[tuple[str, int]]:
    """The currencies in which the postings of a transaction do not sum to zero, with the sum."""
    yield from _rows(
        f"""
        SELECT coalesce(a.currency, 'missing'), {_sum("p.minor")}
        FROM credits_posting p LEFT JOIN credits_ledgeraccount a ON a.id = p.account_id
        WHERE p.transaction_id = %s GROUP BY a.currency HAVING sum(p.minor) <> 0""",  # noqa: S608
        *_stored(uuid.UUID(transaction_id)),
    )


def sums_stored(contract_id: uuid.UUID | None) -> Iterator[tuple[str, str, int]]:
    """The books of each credit: credit, kind of the account, and the sum of its postings in minor units."""
    yield from _rows(
        f"""
        SELECT {_id("p.credit_id")}, a.kind, p.minor
        FROM (SELECT p.credit_id, p.account_id, {_sum("p.minor")} AS minor FROM credits_posting p
              {_in_contract(contract_id)} GROUP BY p.credit_id, p.account_id) p
        JOIN credits_ledgeraccount a ON a.id = p.account_id""",  # noqa: S608
        *_stored(contract_id),
    )


def paid_stored(contract_id: uuid.UUID | None) -> Iterator[StoredPayment]:
    """What credits pay of each order of which they pay anything, and of orders that are missing."""
    rows = _rows(
        f"""
        SELECT {_id("p.order_id")}, {_sum("p.minor")}, {_id("o.contract_id")}, o.amount_minor,
               CAST(o.ordered_on AS text)
        FROM credits_posting p JOIN credits_ledgeraccount a ON a.id = p.account_id AND a.kind = 'applied'
        LEFT JOIN contracts_order o ON o.id = p.order_id
        {_in_contract(contract_id)}
        GROUP BY p.order_id, o.contract_id, o.amount_minor, o.ordered_on
        HAVING sum(p.minor) <> 0 OR o.amount_minor IS NULL""",  # noqa: S608
        *_stored(contract_id),
    )
    yield from map(StoredPayment._make, rows)


def grants_stored(contract_id: uuid.UUID | None) -> Iterator[StoredGrant]:
    """What was posted when credits were issued, approved and fixed, in the order of the chains."""
    rows = _rows(
        f"""
        SELECT {_id("p.credit_id")}, {_id("t.id")}, t.kind, {_id("t.actor_id")}, t.version, t.grounds, p.minor,
               {_id("p.order_id")}
        FROM credits_ledgertransaction t JOIN credits_posting p ON p.transaction_id = t.id AND p.minor > 0
        WHERE t.kind IN ('issue', 'approve', 'fix') {_of_contract(contract_id, "AND")}
        ORDER BY t.contract_id, t.sequence, p.line""",  # noqa: S608
        *_stored(contract_id),
    )
    yield from map(StoredGrant._make, rows)


def statements_stored() -> Iterator[tuple[str, str]]:
    """Every statement: id and hash. Read apart, because a join would hide what names a missing statement."""
    yield from _rows(f"SELECT {_id('id')}, sha256 FROM guarantee_statement")  # noqa: S608


def memory_widen() -> None:
    """Until the transaction ends, PostgreSQL sorts in memory what a usual query would sort on disk."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL work_mem = '64MB'")


def _rows(statement: str, *parameters: Any) -> Iterator[tuple[Any, ...]]:
    with connection.chunked_cursor() as cursor:
        cursor.execute(statement, parameters)
        while rows := cursor.fetchmany(ROWS_AT_ONCE):
            yield from rows


def _of_contract(contract_id: uuid.UUID | None, word: str = "WHERE") -> str:
    return "" if contract_id is None else f"{word} t.contract_id = %s"


def _in_contract(contract_id: uuid.UUID | None) -> str:
    if contract_id is None:
        return ""
    return "WHERE p.transaction_id IN (SELECT id FROM credits_ledgertransaction WHERE contract_id = %s)"


def _stored(contract_id: uuid.UUID | None) -> list[Any]:
    if contract_id is None:
        return []
    return [contract_id if connection.vendor == "postgresql" else contract_id.hex]


def _quoted(text: str) -> str:
    """SQL for a text as JSON writes it, or `null`."""
    if connection.vendor == "postgresql":
        return f"coalesce(to_json({text})::text, 'null')"
    return f"coalesce(json_quote({text}), 'null')"


def _typed(text: str) -> str:
    """As `_quoted`, for ids and times: PostgreSQL's types leave nothing in them to escape, and escaping costs."""
    return f"coalesce('\"' || {text} || '\"', 'null')" if connection.vendor == "postgresql" else _quoted(text)


def _number(column: str) -> str:
    """SQL for an integer as text."""
    return f"CAST({column} AS text)"


def _sum(column: str) -> str:
    """SQL for a sum as an integer; PostgreSQL's own sum of a bigint is a decimal."""
    return f"CAST(sum({column}) AS bigint)"


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
