"""An account manager's correction of what belongs to one root event, with a reason, in the audit log, reversible."""

from collections.abc import Collection

from django.db import transaction
from django.utils.translation import gettext as _

from yoco.accounts.models import User
from yoco.contracts.locks import contracts_lock
from yoco.core.audit import audit_record
from yoco.core.ids import uuid7
from yoco.core.problem import DomainError
from yoco.incidents.models import Incident, Regrouping
from yoco.incidents.services.root_events import root_events_assign


def incidents_merge(*, incidents: Collection[Incident], actor: User, reason: str) -> set[int]:
    """Makes these incidents of one contract one root event. Returns these and all others that this regrouped.

    Raises DomainError without a reason, for fewer than two incidents and across contracts.
    """
    if len({incident.pk for incident in incidents}) < 2:
        raise DomainError(_("Choose at least two incidents to merge."), code="merge_needs_two")
    return _move(incidents, back_to_rules=False, actor=actor, reason=reason, action="incidents.merged")


def incident_split(*, incident: Incident, actor: User, reason: str) -> set[int]:
    """Makes an incident a root event of its own. Returns it and all others that this regrouped."""
    return _move([incident], back_to_rules=False, actor=actor, reason=reason, action="incident.split")


def regrouping_revert(*, incident: Incident, actor: User, reason: str) -> set[int]:
    """Lets the rules decide again where an incident belongs. Raises DomainError if nobody had moved it."""
    if incident.moved_to is None:
        raise DomainError(_("Nobody has moved this incident; the rules placed it."), code="not_moved")
    return _move([incident], back_to_rules=True, actor=actor, reason=reason, action="incident.regrouping_reverted")


@transaction.atomic
def _move(incidents: Collection[Incident], *, back_to_rules: bool, actor: User, reason: str, action: str) -> set[int]:
    reason = reason.strip()
    if not reason:
        raise DomainError(_("Say why: the customer sees the reason."), code="reason_missing")
    contracts = {incident.contract_id: incident.contract for incident in incidents}
    if len(contracts) != 1:
        raise DomainError(_("Incidents of different contracts cannot be one root event."), code="merge_across")
    (contract,) = contracts.values()
    contracts_lock([contract.pk])
    key = None if back_to_rules else uuid7()
    rows = list(Incident.objects.filter(pk__in=[incident.pk for incident in incidents]))
    for row in rows:
        row.moved_to = key
        regrouping = Regrouping.objects.create(incident=row, moved_to=key, reason=reason, by=actor)
        audit_record(
            action=action,
            actor=actor,
            subject=row,
            organisation_id=contract.organisation_id,
            data={"regrouping": str(regrouping.pk), "reason": reason, "moved_to": str(key) if key else None},
        )
    moved = root_events_assign(contract=contract, incidents=rows)
    Incident.objects.bulk_update(rows, ["moved_to", "root_event"])
    return {incident.pk for incident in (*rows, *moved)}
