"""Reading by the ORM, of which the SQL is written once."""

import copy
import datetime
import enum
import functools
import secrets
import uuid
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import Model, QuerySet
from django.db.models.sql.compiler import SQLCompiler

P = ParamSpec("P")
M = TypeVar("M", bound=Model)
Row = TypeVar("Row")
MANY = 512
COLLECTIONS = (list, tuple, Set, Mapping)
FAR = datetime.datetime(9000, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value of a call goes: the argument, and which of its values."""

    name: str
    index: int


@dataclass(frozen=True, slots=True)
class _Kept:
    queryset: "QuerySet[Any, Any]"
    compiler: "SQLCompiler"
    sql: str
    params: tuple[Any, ...]
    """Constants, and the places of values."""
    converters: dict[int, Any]


def compiled(build: "Callable[P, QuerySet[M, Row]]") -> Callable[P, list[Row]]:
    """Makes of a function that builds a query one that returns its rows, and keeps the SQL for the next call.

    Django takes longer to write the SQL of a small query than PostgreSQL takes to answer it; this was half of the time
    of a report. Arguments are keywords. Ids, instants, texts and collections of them are sent with the kept SQL, so
    the function may hand them to lookups and do nothing else with them; `None` and booleans it may look at. On other
    databases, and with empty or very large collections, the function is asked every time.
    """
    kept: dict[tuple[Any, ...], _Kept] = {}

    @functools.wraps(build)
    def rows(*args: P.args, **values: P.kwargs) -> list[Row]:
        sizes = [len(value) for value in values.values() if isinstance(value, COLLECTIONS)]
        connection = connections[DEFAULT_DB_ALIAS]
        if args or connection.vendor != "postgresql" or not all(0 < size <= MANY for size in sizes):
            return list(build(*args, **values))
        sent = {name: _padded(value) for name, value in values.items()}
        shape = tuple((name, *map(_shape, sent[name])) for name in values)
        known = kept.get(shape)
        if known is None:
            known = kept[shape] = _compile(build, values, sent)
        params = tuple(sent[each.name][each.index] if isinstance(each, _Place) else each for each in known.params)
        compiler = copy.copy(known.compiler)
        compiler.connection = connection
        compiler.as_sql = lambda *args, **options: (known.sql, params)  # type: ignore[method-assign]
        compiler.get_converters = lambda *args: known.converters  # type: ignore[method-assign]
        again = known.queryset.all()
        again.query.get_compiler = lambda *args, **options: compiler  # type: ignore[method-assign]
        return list(again)

    return rows


def _padded(value: Any) -> list[Any]:
    """The values, their number a power of two: so there are few shapes."""
    found = [
        each.value if isinstance(each, enum.Enum) else each
        for each in (value if isinstance(value, COLLECTIONS) else (value,))
    ]
    return found + found[-1:] * ((1 << (len(found) - 1).bit_length()) - len(found))


def _shape(value: Any) -> Any:
    """What of a value the SQL depends on."""
    return value if value is None or isinstance(value, bool) else type(value)


def _compile(build: Callable[..., Any], values: dict[str, Any], sent: dict[str, list[Any]]) -> _Kept:
    places: dict[Any, _Place] = {}
    stand_ins: dict[str, Any] = {}
    for name, given in sent.items():
        marks = [_mark(value) for value in given]
        places |= {mark: _Place(name, index) for index, mark in enumerate(marks) if mark is not given[index]}
        stand_ins[name] = marks if isinstance(values[name], COLLECTIONS) else marks[0]
    queryset = build(**stand_ins)
    compiler = queryset.query.get_compiler(using=queryset.db)
    sql, params = compiler.as_sql()
    found = tuple(places.get(param, param) for param in params)
    if lost := {place.name for place in places.values()} - {each.name for each in found if isinstance(each, _Place)}:
        raise TypeError(f"{build.__qualname__} does more with {', '.join(sorted(lost))} than look it up.")
    return _Kept(queryset, compiler, sql, found, compiler.get_converters([column for column, *_ in compiler.select]))


def _mark(value: Any) -> Any:
    """A value of the same kind that no other is equal to; the value itself where the SQL depends on it."""
    match value:
        case None | bool():
            return value
        case uuid.UUID():
            return uuid.uuid4()
        case datetime.datetime():
            return FAR + datetime.timedelta(microseconds=secrets.randbelow(10**15))
        case int():
            return secrets.randbits(62)
        case str():
            return secrets.token_hex(16)
    raise TypeError(f"A {type(value).__name__} cannot be sent with kept SQL.")
