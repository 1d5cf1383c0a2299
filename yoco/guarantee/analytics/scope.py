"""The contract years that are looked at, up to now, and their weeks."""

import datetime
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from django.db.models import Q, QuerySet

from yoco.contracts.models import ContractYear
from yoco.core.clock import local_midnight
from yoco.guarantee.facts import EPOCH, milliseconds
from yoco.guarantee.models import Outcome, Placement
from yoco.incidents.models import Kind

WEEK = datetime.timedelta(days=7)
Span = tuple[int, int]
Step = Callable[[int, int], None]  # steps done, of so many
# No job failed: the path healed by itself, or a silence turned out to be another report's.
NO_FAILURE_RULES = ("path_failover", "path_healed", "explained")


def epoch_ms(at: datetime.datetime) -> int:
    """Milliseconds since 1970."""
    return milliseconds(EPOCH, at) or 0


@dataclass(frozen=True, slots=True)
class Week:
    """Seven local days; the last one of a year, or of a year that runs, is shorter."""

    starts_on: datetime.date
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Scope:
    """A contract year up to now, or the years of several contracts, in weeks of one time zone.

    `year` is the year of a page that shows one; of a fleet, the first.
    """

    years: tuple[ContractYear, ...]
    now: datetime.datetime
    zone: ZoneInfo
    weeks: list[Week]

    @property
    def year(self) -> ContractYear:
        return self.years[0]

    @property
    def until(self) -> datetime.datetime:
        """The end of the year, or now."""
        return min(self.now, max(year.ends_at for year in self.years))

    @property
    def start_ms(self) -> int:
        return min(epoch_ms(year.starts_at) for year in self.years)

    @property
    def until_ms(self) -> int:
        return max(self.start_ms, epoch_ms(self.until))

    def week_of(self, day: datetime.date) -> int:
        """The index of the week that holds this local day; beyond the weeks where none does."""
        return (day - self.weeks[0].starts_on) // WEEK if self.weeks else -1

    def windows_ms(self) -> dict[uuid.UUID, Span]:
        """By contract, when the first of its years began, and when the last ends or now; years follow each other."""
        found: dict[uuid.UUID, Span] = {}
        for year in self.years:
            start = epoch_ms(year.starts_at)
            end = max(start, epoch_ms(min(self.now, year.ends_at)))
            low, high = found.get(year.contract_id, (start, end))
            found[year.contract_id] = (min(low, start), max(high, end))
        return found


def scope_of(*, year: ContractYear, now: datetime.datetime) -> Scope:
    """The year with its weeks that have begun; `year.contract` should be loaded."""
    return fleet_scope(years=[year], now=now)


def fleet_scope(*, years: Sequence[ContractYear], now: datetime.datetime) -> Scope:
    """Years of several contracts, the weeks counted from the first one's start, in their zone or else UTC.

    Raises ValueError without a year.
    """
    zones = {year.contract.time_zone for year in years}
    zone = zones.pop() if len(zones) == 1 else "UTC"
    until = min(now, max(year.ends_at for year in years))
    day, last = min(year.starts_on for year in years), max(year.ends_on for year in years)
    weeks = []
    while day < last:
        start = local_midnight(day, zone)
        if start >= until:
            break
        end = min(local_midnight(min(day + WEEK, last), zone), until)
        weeks.append(Week(day, epoch_ms(start), epoch_ms(end)))
        day += WEEK
    return Scope(tuple(years), now, ZoneInfo(zone), weeks)


def failures_of(years: Iterable[ContractYear]) -> "QuerySet[Placement]":
    """The unplanned failures of years, each counted unit once, without those that were excluded or were none."""
    found = Placement.objects.filter(year__in=list(years), lead=True, kind=Kind.UNPLANNED)
    return found.exclude(Q(outcome=Outcome.EXCLUDED) | Q(rule__in=NO_FAILURE_RULES))
