"""Computed analytics as bytes and back: plain values, no code, and no row of the database but by its key."""

import datetime
from collections.abc import Sequence
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import msgspec
from django.db.models import Model

from yoco.contracts.models import ContractYear
from yoco.guarantee.analytics.tables import Table

T = TypeVar("T")


def encoded(value: Any) -> bytes:
    """The bytes of a tree of dataclasses. Raises TypeError for what they cannot hold."""
    return msgspec.msgpack.encode(value, enc_hook=_plain)


def decoded(content: bytes, kind: type[T], *, years: Sequence[ContractYear]) -> T:
    """The tree again, given the contract years that it speaks of, with their contracts.

    Raises msgspec.ValidationError for bytes of another version of these classes, KeyError for a year that is missing.
    """
    rows: dict[str, Model] = {str(year.pk): year for year in years}
    rows |= {str(year.contract_id): year.contract for year in years}

    def restored(kind: type[Any], value: Any) -> Any:
        if kind is ZoneInfo:
            return ZoneInfo(value)
        if issubclass(kind, Model):
            return rows[value]
        raise TypeError(f"{kind.__name__} was never kept.")

    return msgspec.msgpack.decode(content, type=kind, dec_hook=restored)


def _plain(value: Any) -> Any:
    if isinstance(value, Model):
        return str(value.pk)
    if isinstance(value, ZoneInfo):
        return value.key
    raise TypeError(f"{type(value).__name__} cannot be kept.")


def tables_restored(tables: dict[str, Table]) -> dict[str, Table]:
    """Tables whose days are days again: a cell's type is not kept, its column's name tells it."""
    return {code: table_of(table) for code, table in tables.items()}


def table_of(table: Table) -> Table:
    """The table with dates in its columns that end in `_on`."""
    days = {index for index, name in enumerate(table.columns) if name.endswith("_on")}
    rows = [
        tuple(
            datetime.date.fromisoformat(cell) if index in days and isinstance(cell, str) else cell
            for index, cell in enumerate(row)
        )
        for row in table.rows
    ]
    return Table(table.code, tuple(table.columns), rows)
