"""An exhibit: a table of the analytics with its title, a sentence, a note and, where it helps, a chart."""

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext as _

from yoco.core.templatetags.formats import NOT_RECORDED, day, duration, gpu_hours, number, percent, when
from yoco.guarantee.analytics.tables import Table
from yoco.portal.analytics.words import CODES, COLUMNS, code_word

Text = str | Promise
OPEN_ROWS = 14  # a longer table starts closed

TEXT_COLUMNS = {*CODES, "run", "customer", "contract", "currency", "source", "name", "incident", "group", "xid", "year"}
NOT_NUMERIC = ("_on", "_at", "estimated")


@dataclass(frozen=True, slots=True)
class Cell:
    """A value as a reader sees it. `incident` is the id of the incident that it names."""

    text: str
    numeric: bool
    incident: str = ""


@dataclass(frozen=True, slots=True)
class Exhibit:
    """`figure` is a plotly figure as plain JSON; its colours are names of custom properties of the style sheet."""

    table: Table
    title: Text
    summary: str
    note: Text = ""
    figure: dict[str, Any] | None = None

    @property
    def code(self) -> str:
        return self.table.code

    @property
    def figure_id(self) -> str:
        return f"figure-{self.code}"

    @property
    def is_open(self) -> bool:
        return len(self.table.rows) <= OPEN_ROWS

    @property
    def head(self) -> list[Cell]:
        """The column names."""
        return [
            Cell(str(COLUMNS[name]), name not in TEXT_COLUMNS and not name.endswith(NOT_NUMERIC))
            for name in self.table.columns
        ]

    @property
    def body(self) -> list[list[Cell]]:
        """The rows as text."""
        return [
            [_cell(name, value) for name, value in zip(self.table.columns, row, strict=True)] for row in self.table.rows
        ]


FORMATS: list[tuple[str, Callable[[Any], str]]] = [
    ("_gpu_ms", gpu_hours),
    ("gpu_ms", gpu_hours),
    ("_ms", duration),
    ("_on", day),
    ("_at", lambda value: str(when(value))),
    ("share", lambda value: percent((Decimal(value) * 100).quantize(Decimal("0.01")))),
    ("chance", lambda value: chance_words(value)),
    ("node_hours", lambda value: number(Decimal(value))),
    ("_hours", lambda value: number(Decimal(value), 2)),
    ("node_rate", lambda value: number(Decimal(value), 2)),
    ("low", lambda value: number(Decimal(value), 2)),
    ("high", lambda value: number(Decimal(value), 2)),
    ("_money", lambda value: number(Decimal(value), 2)),
    ("money", lambda value: number(Decimal(value), 2)),
]


def _cell(name: str, value: Any) -> Cell:
    if value is None:
        return Cell(NOT_RECORDED, name not in TEXT_COLUMNS and not name.endswith(NOT_NUMERIC))
    if name == "incident":
        return Cell(str(value)[-8:], False, str(value))  # the beginning of a UUIDv7 is its time, alike in many
    if name in TEXT_COLUMNS:
        return Cell(code_word(name, value), False)
    if isinstance(value, bool):
        return Cell(_("yes") if value else _("no"), False)
    for ending, text in FORMATS:
        if name.endswith(ending):
            return Cell(text(value), not isinstance(value, datetime.date))
    return Cell(number(Decimal(value), 3) if isinstance(value, float) else number(value), True)


def chance_words(chance: float) -> str:
    """A probability in whole per cent; never 0 or 100, which would promise what nobody can."""
    if chance < 0.01:
        return _("below 1 %")
    if chance > 0.99:
        return _("above 99 %")
    return f"{number(Decimal(chance * 100))} %"


def share_words(share: float) -> str:
    """A share in per cent with two decimals."""
    return percent((Decimal(share) * 100).quantize(Decimal("0.01")))


def hours_words(hours: float) -> str:
    """Hours with one decimal, two where they are few."""
    return number(Decimal(hours), 1 if hours >= 10 else 2)


def not_enough() -> str:
    """Said instead of a figure that the data do not allow."""
    return _("Not enough data.")
