"""Incidents on a time axis: a lane for each month, a stack for each day, so that a year fits a phone."""

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from babel.dates import format_date
from django.utils.translation import ngettext

from yoco.core.templatetags.formats import day as day_text
from yoco.core.templatetags.formats import number, reader_locale
from yoco.guarantee.burndown import DAY
from yoco.guarantee.models import Outcome
from yoco.portal.graphics import percent_text

LANE, PLOT = 56, 30
"""Height of a month, and of its tallest stack, in pixels; the rest has the month's name."""
LEAST = 2
"""Pixels of an outcome that occurred at all, so that one failure among hundreds is seen."""
HEAD = 16
"""Pixels above the lanes, for the days of the month."""
DAYS = 31


@dataclass(frozen=True, slots=True)
class Part:
    """The incidents of one outcome in a day's stack, in pixels from the top."""

    outcome: str
    y: int
    height: int


@dataclass(frozen=True, slots=True)
class Stack:
    """A day on which something happened, `x` in percent; `counts` go with `Timeline.outcomes`."""

    day: datetime.date
    x: str
    parts: list[Part]
    counts: list[int]
    total: int
    words: str


@dataclass(frozen=True, slots=True)
class Lane:
    """A calendar month, with its top in pixels."""

    name: str
    y: int
    stacks: list[Stack]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The months from first to last, those without incidents included."""

    lanes: list[Lane]
    height: int
    ticks: list[tuple[int, str]]
    width: str
    outcomes: list[tuple[str, str]]
    stacks: list[Stack]
    summary: str


def timeline_drawn(
    counts: Iterable[tuple[datetime.date, str, int]], *, first: datetime.date, last: datetime.date
) -> Timeline | None:
    """The chart of incidents by day and outcome, from `first` to `last` or the last incident; None without any."""
    by_day: dict[datetime.date, dict[str, int]] = {}
    for day, outcome, n in counts:
        by_day.setdefault(day, {})[outcome] = n
    if not by_day:
        return None
    met = {outcome for found in by_day.values() for outcome in found}
    outcomes = [(value, str(label)) for value, label in Outcome.choices if value in met]
    most = max(sum(found.values()) for found in by_day.values())
    months = _months(min(first, *by_day), max(last, *by_day))
    lanes = []
    for row, month in enumerate(months):
        top = HEAD + row * LANE
        mine = sorted(day for day in by_day if (day.year, day.month) == (month.year, month.month))
        stacks = [_stack(day, by_day[day], outcomes, top + LANE - 2, most) for day in mine]
        lanes.append(Lane(format_date(month, format="LLLL y", locale=reader_locale()), top, stacks))
    stacks = [stack for lane in lanes for stack in lane.stacks]
    return Timeline(
        lanes=lanes,
        height=HEAD + len(lanes) * LANE + 4,
        ticks=[(day, _across(day)) for day in range(1, DAYS + 1, 7)],
        width=percent_text(Fraction(1, DAYS)),
        outcomes=outcomes,
        stacks=stacks,
        summary=_summary(stacks),
    )


def _months(first: datetime.date, last: datetime.date) -> list[datetime.date]:
    """The first day of each calendar month in between."""
    months = [first.replace(day=1)]
    while (following := (months[-1] + DAYS * DAY).replace(day=1)) <= last:
        months.append(following)
    return months


def _across(day_of_month: int) -> str:
    return percent_text(Fraction(day_of_month - 1, DAYS))


def _stack(day: datetime.date, found: dict[str, int], outcomes: list[tuple[str, str]], bottom: int, most: int) -> Stack:
    parts = []
    for outcome, _label in outcomes:
        if n := found.get(outcome, 0):
            height = max(LEAST, n * PLOT // most)
            bottom -= height
            parts.append(Part(outcome, bottom, height))
    told = ", ".join(f"{label} {number(found[outcome])}" for outcome, label in outcomes if outcome in found)
    return Stack(
        day=day,
        x=_across(day.day),
        parts=parts,
        counts=[found.get(outcome, 0) for outcome, _label in outcomes],
        total=sum(found.values()),
        words=f"{day_text(day)}: {told}",
    )


def _summary(stacks: list[Stack]) -> str:
    """The chart for whoever does not see it."""
    total, worst = sum(stack.total for stack in stacks), max(stacks, key=lambda stack: stack.total)
    days = ngettext("%(n)s day", "%(n)s days", len(stacks)) % {"n": number(len(stacks))}
    said = ngettext("%(n)s incident on %(days)s.", "%(n)s incidents on %(days)s.", total)
    most = ngettext("Most on %(day)s: %(n)s.", "Most on %(day)s: %(n)s.", worst.total)
    return " ".join(
        [
            said % {"n": number(total), "days": days},
            most % {"day": day_text(worst.day), "n": number(worst.total)},
        ]
    )
