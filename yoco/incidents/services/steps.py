"""Step times from heartbeats: two numbers an hour and run, so that months of training stay small."""

import datetime

from django.db.models import F
from django.db.models.functions import Greatest, Least

from yoco.contracts.models import Contract
from yoco.incidents.models import Run, StepHour
from yoco.incidents.services.runs import Advance

HOUR = datetime.timedelta(hours=1)
MILLISECOND = datetime.timedelta(milliseconds=1)


def steps_note(*, contract: Contract, run_id: str, advance: Advance) -> None:
    """Adds the steps between two heartbeats to the hour in which the later one was written; one query, three an hour.

    What took longer than an hour says nothing of an hour, and more than a step a millisecond is no training: both are
    left out. The caller holds the contract's lock.
    """
    took_ms = (advance.until - advance.since) // MILLISECOND
    if not advance.steps <= took_ms <= HOUR // MILLISECOND:
        return
    hour = advance.until.astimezone(datetime.UTC).replace(minute=0, second=0, microsecond=0)
    known = StepHour.objects.filter(run__contract=contract, run__run_id=run_id, hour=hour)
    # The boots of a run have clocks of their own; one that lags must not turn the hour's span around.
    added = known.update(
        steps=F("steps") + advance.steps,
        took_ms=F("took_ms") + took_ms,
        first_at=Least(F("first_at"), advance.since),
        last_at=Greatest(F("last_at"), advance.until),
    )
    if added:
        return
    run = Run.objects.filter(contract=contract, run_id=run_id).first()
    if run is not None:
        StepHour.objects.create(
            run=run, hour=hour, first_at=advance.since, last_at=advance.until, steps=advance.steps, took_ms=took_ms
        )
