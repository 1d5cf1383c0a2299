"""The budget of failures day by day: a step line to be drawn without script or style, its table, and it in words."""

import datetime
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from yoco.contracts.models import ContractYear, GuaranteeTerms
from yoco.core.templatetags.formats import day as day_text
from yoco.core.templatetags.formats import number
from yoco.guarantee.burndown import DAY, BudgetDay, DayCount, burn_down
from yoco.portal.graphics import percent_text

# The plot lies between these, in pixels; above it is room for labels, below it for the days.
TOP, BOTTOM = 32, 132
# The line has its own coordinates across, which are stretched over the width.
WIDE = 1000


@dataclass(frozen=True, slots=True)
class Mark:
    """Something at a place of the chart: `x` in percent of its width, `y` in pixels, and what it says."""

    x: str
    y: int
    words: str


@dataclass(frozen=True, slots=True)
class Edge:
    """A day that matters to the whole year; its words stand on the side where there is room."""

    x: str
    anchor: str
    words: str


@dataclass(frozen=True, slots=True)
class Budget:
    """The chart from `first` to `last`, and what stands beside it. `rows` are the days on which a failure counted."""

    points: str
    zero: int
    levels: list[Mark]
    misses: list[Mark]
    months: list[str]
    edges: list[Edge]
    rows: list[BudgetDay]
    summary: str
    first: datetime.date
    last: datetime.date


def budget_drawn(
    days: Sequence[BudgetDay],
    *,
    first: datetime.date,
    last: datetime.date,
    guaranteed_from: datetime.date | None,
    until: str,
) -> Budget | None:
    """The chart over the days of a year, both included; None where no failure has counted yet.

    Where `days` end before the year does, `until` names the last of them.
    """
    rows = [day for day in days if day.resolved or day.missed]
    if not rows:
        return None
    length = (last - first).days + 1
    top, floor = max(0, *(day.allowed for day in days)), min(0, *(day.allowed for day in days))

    def height(allowed: int) -> int:
        return TOP + (top - allowed) * (BOTTOM - TOP) // max(1, top - floor)

    def across(day: datetime.date, halves: int = 0) -> str:
        """Where a day begins, or so many half days later."""
        return percent_text(Fraction(2 * (day - first).days + halves, 2 * length))

    def edge(x: str, words: str) -> Edge:
        return Edge(x, "start" if float(x.rstrip("%")) < 50 else "end", words)

    edges = []
    if guaranteed_from and guaranteed_from > first:
        edges.append(edge(across(guaranteed_from), _("The guarantee began")))
    if days[-1].day < last:
        edges.append(edge(across(days[-1].day, 2), until))

    def points() -> Iterator[str]:
        """The line: level over each day, and a step where one differs from the day before."""
        before = height(0)
        yield f"0,{before}"
        for number_, day in enumerate(days):
            if (level := height(day.allowed)) != before:
                x = f"{number_ * WIDE / length:.1f}"
                yield f"{x},{before} {x},{level}"
                before = level
        yield f"{len(days) * WIDE / length:.1f},{before}"

    return Budget(
        points=" ".join(points()),
        zero=height(0),
        levels=[Mark("100%", height(level), number(level)) for level in sorted({floor, 0, top})],
        misses=[Mark(across(row.day, 1), height(row.allowed), _missed(row)) for row in rows if row.missed],
        months=[across(day) for day in (first + n * DAY for n in range(1, length)) if day.day == 1],
        edges=edges,
        rows=rows,
        summary=" ".join(_sentences(days)),
        first=first,
        last=last,
    )


def year_budget(year: ContractYear, days: Sequence[BudgetDay], *, until: str) -> Budget | None:
    """The chart of a contract year; None in one without guarantee. `until` names the last day if the year goes on."""
    if year.guaranteed_from is None:
        return None
    began = year.guaranteed_from.astimezone(ZoneInfo(year.contract.time_zone)).date()
    return budget_drawn(days, first=year.starts_on, last=year.last_day, guaranteed_from=began, until=until)


def frozen_budget(
    year: ContractYear, counts: Iterable[DayCount], *, last: datetime.date, terms: GuaranteeTerms
) -> Budget | None:
    """The chart of the units that a document froze, up to its last day."""
    days = burn_down(counts, first=year.starts_on, last=last, terms=terms)
    return year_budget(year, days, until=day_text(last))


def _allowed(day: BudgetDay) -> str:
    """What could still be missed at the end of a day, or by how much it was too many."""
    if day.allowed < 0:
        over = -day.allowed
        return ngettext("%(n)s failure more than allowed", "%(n)s failures more than allowed", over) % {
            "n": number(over)
        }
    return ngettext("%(n)s failure still allowed", "%(n)s failures still allowed", day.allowed) % {
        "n": number(day.allowed)
    }


def _missed(day: BudgetDay) -> str:
    missed = ngettext("%(n)s not resolved", "%(n)s not resolved", day.missed) % {"n": number(day.missed)}
    return f"{day_text(day.day)}: {missed}; {_allowed(day)}"


def _sentences(days: Sequence[BudgetDay]) -> Iterator[str]:
    """The chart for whoever does not see it."""
    last, least = days[-1], min(days, key=lambda day: day.allowed)
    yield _("On %(day)s: %(allowed)s.") % {"day": day_text(last.day), "allowed": _allowed(last)}
    if least.allowed < last.allowed:
        yield _("Lowest on %(day)s: %(allowed)s.") % {"day": day_text(least.day), "allowed": _allowed(least)}
    missed = sum(bool(day.missed) for day in days)
    yield ngettext(
        "On %(n)s day a failure was not resolved without loss.",
        "On %(n)s days failures were not resolved without loss.",
        missed,
    ) % {"n": number(missed)}
