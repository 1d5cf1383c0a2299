"""How fast the watched runs went, and when they went slowly."""

import datetime
import uuid
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate

from django.db.models import BigIntegerField, Value

from yoco.guarantee.analytics.exposure import Watched, merged
from yoco.guarantee.analytics.scope import Scope, Span, epoch_ms
from yoco.guarantee.facts import EPOCH
from yoco.guarantee.models import Placement
from yoco.incidents.models import StepHour
from yoco.waste.model import HOUR_MS
from yoco.waste.slow import Hour, Pace, pace_of

MOST_HOURS = 20_000  # of the largest runs by GPU-time; a year of one is 8,760 rows, and so many take half a second


@dataclass(frozen=True, slots=True)
class RunPace:
    """A watched run and its pace."""

    run: Watched
    pace: Pace

    @property
    def lost_gpu_ms(self) -> int | None:
        """GPU-time lost by slowness; None where the run has no baseline."""
        return None if self.pace.baseline_ms is None else self.pace.lost_ms * (self.run.gpus or 0)


def run_paces(scope: Scope, watched: list[Watched]) -> list[RunPace]:
    """The pace of each of the largest watched runs; hours that an incident of the run touches are left out.

    One query for hours and incidents: a join of the two would compare each hour with every later incident. An hour's
    steps may have begun in the hour before: who failed in between is left out with it.
    """
    runs = _looked_at(watched)
    if not runs:
        return []
    ids = [run.id for run in runs]
    told = StepHour.objects.filter(run__in=ids, hour__gte=scope.year.starts_at, hour__lt=scope.until)
    stalls = Placement.objects.filter(run__in=ids, ended_at__gt=scope.year.starts_at)
    none = Value(0, output_field=BigIntegerField())
    rows = told.values_list("run_id", "first_at", "last_at", "steps", "took_ms").union(
        stalls.annotate(steps=none, took_ms=none).values_list("run_id", "stall_from", "ended_at", "steps", "took_ms"),
        all=True,
    )
    hours: dict[uuid.UUID, list[tuple[Hour, Span]]] = {run.id: [] for run in runs}
    touched: dict[uuid.UUID, list[Span]] = {run.id: [] for run in runs}
    for run_id, start, end, steps, took_ms in rows:
        first, last = epoch_ms(start), epoch_ms(end)
        if steps:
            hours[run_id].append((Hour(last - last % HOUR_MS, steps, took_ms), (first, last)))
        else:
            touched[run_id].append((first, last))
    return [RunPace(run, pace_of(_untouched(hours[run.id], merged(touched[run.id])))) for run in runs]


def _looked_at(watched: list[Watched]) -> list[Watched]:
    """The largest runs that were watched for so many hours together, at least one."""
    hours = list(accumulate(run.watched_ms // HOUR_MS for run in watched))
    return [run for run, so_far in zip(watched, hours, strict=True) if so_far <= MOST_HOURS or run is watched[0]]


def _untouched(hours: list[tuple[Hour, Span]], stalls: list[Span]) -> list[Hour]:
    """The hours in order of time that no stall overlaps; `stalls` are merged and in order."""
    free = []
    for hour, (first, last) in sorted(hours, key=lambda pair: pair[0].at_ms):
        after = bisect_left(stalls, first, key=lambda stall: stall[1])
        if after == len(stalls) or stalls[after][0] > last:
            free.append(hour)
    return free


def at_of(at_ms: int) -> datetime.datetime:
    """The instant of so many milliseconds since 1970."""
    return EPOCH + datetime.timedelta(milliseconds=at_ms)
