"""Whatever changes incidents, together with the placing that it changes, in one transaction.

Reports have `services.reports_accept`, account managers `regrouping`; here are heartbeats and silences.
"""

import datetime
import uuid
from typing import Any

from django.db import transaction

from yoco.contracts.models import Contract
from yoco.core.outbox import outbox_record
from yoco.guarantee.placements import placements_refresh
from yoco.incidents import services
from yoco.incidents.models import Incident, Origin


@transaction.atomic
def heartbeat_accept(*, contract: Contract, heartbeat: Any, received_at: datetime.datetime) -> list[list[int]]:
    """Notes a sign of life and returns the ranges of report numbers that never arrived. Raises payload.Invalid."""
    outcome = services.heartbeat_record(contract=contract, heartbeat=heartbeat, received_at=received_at)
    if outcome.incident_ids:
        placements_refresh(incident_ids=outcome.incident_ids, reason="silence_explained")
    if outcome.completed:
        placements_refresh(incident_ids=outcome.completed, reason="run_ended")
    return outcome.missing


def silences_account(*, as_of: datetime.datetime) -> dict[uuid.UUID, int]:
    """Opens and places the unaccounted incidents that are due; their number by contract."""
    accounted = {}
    for contract in services.silence_candidates(as_of=as_of):
        with transaction.atomic():
            ids = services.silence_sweep(contract=contract, as_of=as_of)
            if ids:
                placements_refresh(incident_ids=ids, reason="silence")
                _tell_unaccounted(contract, ids)
                accounted[contract.pk] = len(ids)
    return accounted


def _tell_unaccounted(contract: Contract, ids: set[int]) -> None:
    """One event for all that a sweep opened, so that an outage of many runs is one message."""
    opened = Incident.objects.filter(pk__in=ids, origin=Origin.SILENCE, revision=1).order_by("started_at", "pk")
    names = [str(name) for name in opened.values_list("public_id", flat=True)]
    if names:
        outbox_record(
            kind="incident.unaccounted",
            subject=contract,
            organisation_id=contract.organisation_id,
            payload={"contract": str(contract.pk), "incidents": names},
        )
