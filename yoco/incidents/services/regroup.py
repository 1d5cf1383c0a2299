"""An account manager's correction of what belongs to one root event, with a reason, in the audit log, reversible.

`guarantee.regrouping` decides who has to agree; here are the rows and what they do to root events.
"""

from collections.abc import Collection

from django.db import transaction
from django.utils.translation import gettext as _

from yoco.accounts.models import User
from yoco.contracts.locks import contracts_lock
from yoco.contracts.models import Contract
from yoco.core.audit import audit_record
from yoco.core.ids import uuid7
from yoco.core.problem import DomainError
from yoco.incidents.models import Decision, Incident, Regrouping, RegroupingAction, RegroupingProposal
from yoco.incidents.review import decision_take, reason_stated
from yoco.incidents.services.root_events import root_events_assign

AUDITED = {
    RegroupingAction.MERGE: "incidents.merged",
    RegroupingAction.SPLIT: "incident.split",
    RegroupingAction.REVERT: "incident.regrouping_reverted",
}


def regrouping_contract(*, action: str, incidents: Collection[Incident]) -> Contract:
    """The one contract of incidents that can be regrouped so.

    Raises DomainError for a merge of fewer than two incidents or across contracts, and to revert what nobody moved.
    """
    if action == RegroupingAction.MERGE and len({incident.pk for incident in incidents}) < 2:
        raise DomainError(_("Choose at least two incidents to merge."), code="merge_needs_two")
    if action == RegroupingAction.REVERT and any(incident.moved_to is None for incident in incidents):
        raise DomainError(_("Nobody has moved this incident; the rules placed it."), code="not_moved")
    contracts = {incident.contract_id: incident.contract for incident in incidents}
    if len(contracts) != 1:
        raise DomainError(_("Incidents of different contracts cannot be one root event."), code="merge_across")
    (contract,) = contracts.values()
    return contract


@transaction.atomic
def incidents_regroup(*, action: str, incidents: Collection[Incident], actor: User, reason: str) -> set[int]:
    """Makes these incidents one root event, or one of its own, or leaves it to the rules. Returns what it changed.

    Raises DomainError as `regrouping_contract`, and without a reason.
    """
    reason = reason_stated(reason)
    contract = regrouping_contract(action=action, incidents=incidents)
    contracts_lock([contract.pk])
    key = None if action == RegroupingAction.REVERT else uuid7()
    rows = list(Incident.objects.filter(pk__in=[incident.pk for incident in incidents]))
    for row in rows:
        row.moved_to = key
        regrouping = Regrouping.objects.create(incident=row, moved_to=key, reason=reason, by=actor)
        audit_record(
            action=AUDITED[RegroupingAction(action)],
            actor=actor,
            subject=row,
            organisation_id=contract.organisation_id,
            data={"regrouping": str(regrouping.pk), "reason": reason, "moved_to": str(key) if key else None},
        )
    moved = root_events_assign(contract=contract, incidents=rows)
    Incident.objects.bulk_update(rows, ["moved_to", "root_event"])
    return {incident.pk for incident in (*rows, *moved)}


@transaction.atomic
def regrouping_propose(*, action: str, incidents: Collection[Incident], actor: User, reason: str) -> RegroupingProposal:
    """Keeps a regrouping that waits for a second person. Raises DomainError while another of these incidents waits."""
    reason = reason_stated(reason)
    contract = regrouping_contract(action=action, incidents=incidents)
    contracts_lock([contract.pk])
    if RegroupingProposal.objects.filter(state=Decision.PENDING, incidents__in=incidents).exists():
        raise DomainError(_("A regrouping of this incident waits for its decision already."), code="regrouping_exists")
    proposal = RegroupingProposal.objects.create(contract=contract, action=action, reason=reason, proposed_by=actor)
    proposal.incidents.set(incidents)
    _record("regrouping.proposed", proposal, actor, reason=reason, to=action)
    return proposal


def regrouping_decide(*, proposal: RegroupingProposal, accept: bool, note: str, actor: User) -> None:
    """Accepts or rejects a proposed regrouping. Raises DomainError for its proposer and if it is decided already."""
    note = reason_stated(note)
    if proposal.proposed_by_id == actor.pk:
        raise DomainError(_("Whoever proposed a regrouping cannot decide it; a second person must."), code="four_eyes")
    state = Decision.ACCEPTED if accept else Decision.REJECTED
    decision_take(proposal, [Decision.PENDING], state, note, actor)
    _record(f"regrouping.{state}", proposal, actor, note=note)


def regrouping_withdraw(*, proposal: RegroupingProposal, note: str, actor: User) -> None:
    """Takes a proposed regrouping back. Raises DomainError if it is decided already."""
    note = reason_stated(note)
    decision_take(proposal, [Decision.PENDING], Decision.WITHDRAWN, note, actor)
    _record("regrouping.withdrawn", proposal, actor, note=note)


def _record(action: str, proposal: RegroupingProposal, actor: User, **data: str) -> None:
    incidents = [str(public_id) for public_id in proposal.incidents.order_by("pk").values_list("public_id", flat=True)]
    audit_record(
        action=action,
        actor=actor,
        subject=proposal,
        organisation_id=proposal.contract.organisation_id,
        data={"incidents": incidents, **data},
    )
