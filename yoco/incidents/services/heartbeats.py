"""Heartbeats: the sign of life of a run, and the question which report numbers never arrived."""

import datetime
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction

from yoco.contracts.locks import contracts_lock
from yoco.contracts.models import Contract
from yoco.incidents.models import Incident
from yoco.incidents.payload import Heartbeat, Invalid, heartbeat_read
from yoco.incidents.services.runs import BootNews, boot_missing, boots_upsert, run_last_step, runs_upsert
from yoco.incidents.services.silence import silences_explain
from yoco.incidents.services.steps import steps_note


@dataclass(slots=True)
class HeartbeatOutcome:
    """The ranges `[first, last]` that the agent shall send again, silences that this heartbeat explains, and incidents
    after whose last committed step it says that the run had ended, or had not, as it goes on."""

    missing: list[list[int]]
    incident_ids: set[int] = field(default_factory=set)
    completed: set[int] = field(default_factory=set)


@transaction.atomic
def heartbeat_record(*, contract: Contract, heartbeat: Any, received_at: datetime.datetime) -> HeartbeatOutcome:
    """Notes that a boot lives and what it has issued. Raises payload.Invalid."""
    beat = heartbeat_read(heartbeat, received_at=received_at)
    contracts_lock([contract.pk])
    if beat.workload is not None and beat.workload.run_id == beat.run_id:
        runs_upsert(contract=contract, workloads={beat.run_id: beat.workload})
    seen_at = min(beat.at, received_at)
    ended = beat.run_ended and _ends_where_it_stood(contract, beat, seen_at)
    news = BootNews(
        agent_id=beat.agent_id,
        boot_id=beat.boot_id,
        run_id=beat.run_id,
        seq=beat.seq,
        seen_at=seen_at,
        # The word of an end is kept and sent again; any other heartbeat comes at once or never.
        heard_at=None if beat.run_ended else received_at,
        step=beat.step,
        ended_at=seen_at if ended else None,
    )
    (boot,) = boots_upsert(contract=contract, news=[news])
    if boot.run_id != beat.run_id:
        # Else a lost run would be awaited no more once its boot speaks of the next.
        raise Invalid(f"This boot tells of the run “{boot.run_id}”. For another run, start another boot.", "$.run_id")
    if news.advance is not None:
        steps_note(contract=contract, run_id=beat.run_id, advance=news.advance)
    explained = silences_explain(contract=contract, incidents=[], boots=[boot], at=received_at)
    completed = set[int]()
    if ended or news.went_on:
        last = Incident.objects.filter(run__contract=contract, run__run_id=beat.run_id, first_step_after=None)
        if not news.went_on:
            last = last.filter(last_committed_step=boot.last_step)
        completed = set(last.exclude(last_committed_step=None).order_by().values_list("pk", flat=True))
    return HeartbeatOutcome(missing=boot_missing(boot), incident_ids=explained, completed=completed)


def _ends_where_it_stood(contract: Contract, beat: Heartbeat, at: datetime.datetime) -> bool:
    """An end counts as one only at the step where the run was last known to stand, or beyond.

    A bare word, or an end at a step long passed, would hide that the run was lost: it stays awaited, and unaccounted
    once it is silent.
    """
    known = run_last_step(contract=contract, run_id=beat.run_id, boot_id=beat.boot_id, at=at)
    return known is None or (beat.step is not None and beat.step >= known)
