"""The contract year that is looked at, up to now, and its weeks in the contract's time zone."""

import datetime
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from django.db.models import Q, QuerySet

from yoco.contracts.models import ContractYear
from yoco.core.clock import local_midnight
from yoco.guarantee.facts import EPOCH, milliseconds
from yoco.guarantee.models import Outcome, Placement
from yoco.incidents.models import Kind

WEEK = datetime.timedelta(days=7)
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
    """A contract year up to `until`: its end, or now."""

    year: ContractYear
    now: datetime.datetime
    until: datetime.datetime
    zone: ZoneInfo
    weeks: list[Week]

    @property
    def start_ms(self) -> int:
        return epoch_ms(self.year.starts_at)

    @property
    def until_ms(self) -> int:
        return max(self.start_ms, epoch_ms(self.until))

    def week_of(self, day: datetime.date) -> int:
        """The index of the week that holds this local day."""
        return (day - self.year.starts_on) // WEEK


def scope_of(*, year: ContractYear, now: datetime.datetime) -> Scope:
    """The year with its weeks that have begun; `year.contract` should be loaded."""
    until = min(now, year.ends_at)
    zone = year.contract.time_zone
    weeks = []
    day = year.starts_on
    while day < year.ends_on:
        start = local_midnight(day, zone)
        if start >= until:
            break
        end = min(local_midnight(min(day + WEEK, year.ends_on), zone), until)
        weeks.append(Week(day, epoch_ms(start), epoch_ms(end)))
        day += WEEK
    return Scope(year, now, until, ZoneInfo(zone), weeks)


def failures_of(year: ContractYear) -> "QuerySet[Placement]":
    """The unplanned failures of a year, each counted unit once, without those that were excluded or were none."""
    found = Placement.objects.filter(year=year, lead=True, kind=Kind.UNPLANNED)
    return found.exclude(Q(outcome=Outcome.EXCLUDED) | Q(rule__in=NO_FAILURE_RULES))
