"""How fast the watched runs went, and when they went slowly."""

import datetime
import uuid
from dataclasses import dataclass

from django.db.models import Exists, OuterRef

from yoco.guarantee.analytics.exposure import Watched
from yoco.guarantee.analytics.scope import Scope, epoch_ms
from yoco.guarantee.facts import EPOCH
from yoco.guarantee.models import Placement
from yoco.incidents.models import StepHour
from yoco.waste.slow import Hour, Pace, pace_of

MOST_RUNS = 25  # the largest by GPU-time; a year of one run is 8,760 rows


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
    """The pace of each of the largest watched runs. One query; hours that an incident of the run touches are left out.

    An hour's steps may have begun in the hour before: who failed in between is left out with it.
    """
    runs = watched[:MOST_RUNS]
    if not runs:
        return []
    touched = Placement.objects.filter(
        run=OuterRef("run"), ended_at__gte=OuterRef("first_at"), stall_from__lte=OuterRef("last_at")
    )
    rows = StepHour.objects.filter(
        ~Exists(touched), run__in=[run.id for run in runs], hour__gte=scope.year.starts_at, hour__lt=scope.until
    )
    hours: dict[uuid.UUID, list[Hour]] = {run.id: [] for run in runs}
    for run_id, at, steps, took_ms in rows.order_by("run", "hour").values_list("run_id", "hour", "steps", "took_ms"):
        hours[run_id].append(Hour(epoch_ms(at), steps, took_ms))
    return [RunPace(run, pace_of(hours[run.id])) for run in runs]


def at_of(at_ms: int) -> datetime.datetime:
    """The instant of so many milliseconds since 1970."""
    return EPOCH + datetime.timedelta(milliseconds=at_ms)
