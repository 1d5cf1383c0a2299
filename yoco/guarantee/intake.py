"""Whatever changes incidents, together with the placing that it changes, in one transaction.

Reports have `services.reports_accept`; here are heartbeats, silences and what account managers regroup.
"""

import datetime
import uuid
from collections.abc import Collection
from typing import Any

from django.db import transaction

from yoco.accounts.models import User
from yoco.contracts.models import Contract
from yoco.guarantee.placements import placements_refresh
from yoco.incidents import services
from yoco.incidents.models import Incident


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
                accounted[contract.pk] = len(ids)
    return accounted


@transaction.atomic
def incidents_merge(*, incidents: Collection[Incident], actor: User, reason: str) -> None:
    """Makes these incidents one root event and places them anew. Raises DomainError."""
    changed = services.incidents_merge(incidents=incidents, actor=actor, reason=reason)
    placements_refresh(incident_ids=changed, reason="regrouped")


@transaction.atomic
def incident_split(*, incident: Incident, actor: User, reason: str) -> None:
    """Makes an incident a root event of its own and places it anew. Raises DomainError."""
    changed = services.incident_split(incident=incident, actor=actor, reason=reason)
    placements_refresh(incident_ids=changed, reason="regrouped")


@transaction.atomic
def regrouping_revert(*, incident: Incident, actor: User, reason: str) -> None:
    """Lets the rules group an incident again and places it anew. Raises DomainError."""
    changed = services.regrouping_revert(incident=incident, actor=actor, reason=reason)
    placements_refresh(incident_ids=changed, reason="regrouped")
