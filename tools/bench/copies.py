"""Rows of one customer, written by the real code, copied for many others by SQL: same shapes, own identities."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import sql

# In the values below, t is the copied row, t.place its place in the order of copying, and n the number of the copy.
UNIQUE_TEXT = "t.{} || '/' || n"
UUID = "md5(n || '/' || t.{})::uuid"


def uuid_of_copy(number: int, original: uuid.UUID) -> uuid.UUID:
    """What `UUID` gives."""
    return uuid.UUID(hashlib.md5(f"{number}/{original}".encode(), usedforsecurity=False).hexdigest())


def rows_copy(
    admin: psycopg.Connection[Any],
    table: str,
    *,
    copies: int,
    order: str = "id",
    values: Mapping[str, str] | None = None,
) -> None:
    """Inserts `copies` copies of every row of a table, interleaved, in the order of `order`.

    Every UUID becomes another one, the same in all tables, so that references between copied rows hold; `values` gives
    SQL for other columns that must differ. The caller has switched off the triggers, which have nothing to check here.
    """
    columns = dict(
        admin.execute(
            "SELECT column_name, data_type FROM information_schema.columns "
            "WHERE table_schema = 'public' AND table_name = %s ORDER BY ordinal_position",
            [table],
        ).fetchall()
    )
    given = values or {}
    expressions = [
        given.get(name, (UUID if kind == "uuid" else "t.{}").format(f'"{name}"')) for name, kind in columns.items()
    ]
    admin.execute(
        sql.SQL(
            "INSERT INTO {table} ({columns}) SELECT {expressions} "
            "FROM (SELECT *, row_number() OVER (ORDER BY {order}) AS place FROM {table}) t "
            "CROSS JOIN generate_series(1, {copies}) AS n ORDER BY t.place, n"
        ).format(
            table=sql.Identifier(table),
            columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
            expressions=sql.SQL(", ").join(map(sql.SQL, expressions)),
            order=sql.SQL(order),
            copies=sql.Literal(copies),
        )
    )
