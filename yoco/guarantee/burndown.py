"""How the budget of failures burns down: what a contract year could still miss after each of its days. Pure.

The budget is `rules.failures_still_allowed` of the units counted up to a day, by the same tally as the verdict, so the
last day's is the year's. It is no straight line: a failure that is resolved adds to it, one that is not takes from it.
"""

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from yoco.guarantee.rules import counted_outcomes, failures_still_allowed

DAY = datetime.timedelta(days=1)


class BudgetTerms(Protocol):
    """The terms that decide what counts and how much may be missed."""

    @property
    def unaccounted(self) -> str: ...
    @property
    def threshold_num(self) -> int: ...
    @property
    def threshold_den(self) -> int: ...


@dataclass(frozen=True, slots=True)
class DayCount:
    """So many units whose lead began on a local day, placed alike."""

    day: datetime.date
    outcome: str
    n: int


@dataclass(frozen=True, slots=True)
class BudgetDay:
    """`resolved` and `missed` are of this day; `k`, `n` and `allowed` of all days up to and with it."""

    day: datetime.date
    resolved: int
    missed: int
    k: int
    n: int
    allowed: int


def burn_down(
    counts: Iterable[DayCount], *, first: datetime.date, last: datetime.date, terms: BudgetTerms
) -> list[BudgetDay]:
    """Every day from `first` to `last`, both included; none if `last` comes before.

    What began outside counts on the nearest of them: a failure belongs to the year of its first incident, and the one
    that stands for it may have begun after the year.
    """
    in_ratio = counted_outcomes(terms)
    resolved: Counter[datetime.date] = Counter()
    missed: Counter[datetime.date] = Counter()
    for row in counts:
        if row.outcome in in_ratio:
            (resolved if row.outcome == "resolved" else missed)[min(max(row.day, first), last)] += row.n
    days = []
    k = n = 0
    for number in range((last - first).days + 1):
        day = first + number * DAY
        k, n = k + resolved[day], n + resolved[day] + missed[day]
        allowed = failures_still_allowed(k, n, terms.threshold_num, terms.threshold_den)
        days.append(BudgetDay(day, resolved[day], missed[day], k, n, allowed))
    return days


def frozen_counts(incidents: Iterable[Mapping[str, Any]], time_zone: str) -> list[DayCount]:
    """The units of a statement's rows by local day."""
    zone = ZoneInfo(time_zone)
    counts = Counter(
        (datetime.datetime.fromisoformat(row["started_at"]).astimezone(zone).date(), row["outcome"])
        for row in incidents
        if row["lead"]
    )
    return [DayCount(day, outcome, n) for (day, outcome), n in sorted(counts.items())]
