"""Contract years as pure dates: anniversaries, leap days, partial years. Instants come from `core.clock`."""

import calendar
import datetime
import itertools
from dataclasses import dataclass
from typing import Literal

LeapDayRule = Literal["feb_28", "mar_1"]


@dataclass(frozen=True, slots=True)
class YearSpan:
    """A contract year as dates, half-open. `complete` is false when the contract ends before the anniversary."""

    number: int
    starts_on: datetime.date
    ends_on: datetime.date
    complete: bool


def anniversary(start: datetime.date, years: int, leap_day: LeapDayRule) -> datetime.date:
    """`start` plus whole years. A contract that starts on 29 February has its anniversary there in leap years and, in
    the others, on 28 February or 1 March as the terms say."""
    year = start.year + years
    if (start.month, start.day) == (2, 29) and not calendar.isleap(year):
        return datetime.date(year, 2, 28) if leap_day == "feb_28" else datetime.date(year, 3, 1)
    return start.replace(year=year)


def year_span(
    *,
    number: int,
    starts_on: datetime.date,
    contract_starts_on: datetime.date,
    contract_ends_on: datetime.date,
    leap_day: LeapDayRule,
) -> YearSpan:
    """The contract year `number` (from 1) that begins on `starts_on`, the day on which the year before it ended."""
    full_end = anniversary(contract_starts_on, number, leap_day)
    return YearSpan(number, starts_on, min(full_end, contract_ends_on), contract_ends_on >= full_end)


def year_spans(starts_on: datetime.date, ends_on: datetime.date, leap_day: LeapDayRule) -> list[YearSpan]:
    """All contract years of [`starts_on`, `ends_on`): they tile it without gap or overlap."""
    spans: list[YearSpan] = []
    at = starts_on
    while at < ends_on:
        span = year_span(
            number=len(spans) + 1,
            starts_on=at,
            contract_starts_on=starts_on,
            contract_ends_on=ends_on,
            leap_day=leap_day,
        )
        spans.append(span)
        at = span.ends_on
    return spans


def months_after(start: datetime.date, months: int) -> datetime.date:
    """The same day of the month so many months later, or the last day of a shorter month."""
    year, month = divmod(start.year * 12 + start.month - 1 + months, 12)
    return datetime.date(year, month + 1, min(start.day, calendar.monthrange(year, month + 1)[1]))


def year_months(starts_on: datetime.date, ends_on: datetime.date) -> list[tuple[datetime.date, datetime.date]]:
    """The months of a contract year, half-open; they tile it. There are twelve, or fewer where the year is cut short.

    Each begins on the day of the month on which the year did; the twelfth runs to the year's end.
    """
    inner = [day for n in range(1, 12) if (day := months_after(starts_on, n)) < ends_on]
    return list(itertools.pairwise([starts_on, *inner, ends_on]))
