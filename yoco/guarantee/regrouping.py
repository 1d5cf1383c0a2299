"""Regroupings: account managers correct what belongs to one root event, and the guarantee is placed anew.

Merging failures lowers the number of failures, and splitting one that was resolved from one that was not raises the
number resolved. So a regrouping from which the vendor would gain in any year changes nothing until a second account
manager has accepted it; the customer sees it at once. Any other takes effect at once.
"""

import uuid
from collections.abc import Callable, Collection

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Q

from yoco.accounts.models import User
from yoco.contracts.locks import contracts_lock
from yoco.contracts.models import Contract
from yoco.core.outbox import outbox_record
from yoco.guarantee.placements import placements_refresh
from yoco.guarantee.tally import years_tally
from yoco.incidents import services
from yoco.incidents.models import Incident, RegroupingAction, RegroupingProposal

Standing = dict[uuid.UUID, tuple[int, int]]


@transaction.atomic
def incidents_regroup(
    *, action: str, incidents: Collection[Incident], actor: User, reason: str
) -> RegroupingProposal | None:
    """Regroups at once and returns None, or returns the proposal that waits for a second account manager.

    Raises DomainError for what cannot be regrouped so, without a reason, and while a proposal waits; PermissionDenied
    for all but account managers.
    """
    _account_manager(actor)
    contract = services.regrouping_contract(action=action, incidents=incidents)
    contracts_lock([contract.pk])
    gains = _vendor_gains(
        contract, lambda: regrouping_apply(action=action, incidents=incidents, actor=actor, reason=reason)
    )
    if not gains:
        return None
    proposal = services.regrouping_propose(action=action, incidents=incidents, actor=actor, reason=reason)
    _tell("regrouping.proposed", proposal)
    return proposal


def regrouping_apply(*, action: str, incidents: Collection[Incident], actor: User, reason: str) -> None:
    """Regroups whoever gains, and places anew. For previews, and for what has been agreed."""
    changed = services.incidents_regroup(action=action, incidents=incidents, actor=actor, reason=reason)
    placements_refresh(incident_ids=changed, reason="regrouped")


@transaction.atomic
def regrouping_decide(*, proposal: RegroupingProposal, accept: bool, note: str, actor: User) -> None:
    """A second account manager accepts or rejects a regrouping. Raises DomainError for its proposer.

    A merge takes along whatever tells of the same root events by now.
    """
    _account_manager(actor)
    contracts_lock([proposal.contract_id])
    services.regrouping_decide(proposal=proposal, accept=accept, note=note, actor=actor)
    if accept:
        members = Q(regrouping_proposals=proposal)
        if proposal.action == RegroupingAction.MERGE:
            events = proposal.incidents.exclude(root_event=None).values("root_event_id")
            members |= Q(contract=proposal.contract_id, root_event__in=events)
        incidents = {one.pk: one for one in Incident.objects.filter(members).select_related("contract")}
        regrouping_apply(
            action=proposal.action, incidents=incidents.values(), actor=proposal.proposed_by, reason=proposal.reason
        )
    _tell(f"regrouping.{proposal.state}", proposal)


@transaction.atomic
def regrouping_withdraw(*, proposal: RegroupingProposal, note: str, actor: User) -> None:
    """An account manager takes a proposed regrouping back."""
    _account_manager(actor)
    services.regrouping_withdraw(proposal=proposal, note=note, actor=actor)
    _tell("regrouping.withdrawn", proposal)


def _vendor_gains(contract: Contract, step: Callable[[], object]) -> bool:
    """Runs `step`, and takes it back if any year then has fewer failures that miss or can miss, or more resolved."""
    before = _standing(contract)
    with transaction.atomic():
        step()
        after = _standing(contract)
        gains = any(after[year][0] < before[year][0] or after[year][1] > before[year][1] for year in before)
        if gains:
            transaction.set_rollback(True)
    return gains


def _standing(contract: Contract) -> Standing:
    """Per year, the failures that are not resolved or can still turn out so, and those that are."""
    return {
        year: (tally.not_resolved + tally.unaccounted + tally.pending, tally.resolved)
        for year, tally in years_tally(years=contract.years.all()).items()
    }


def _account_manager(actor: User) -> None:
    if not (actor.is_active and actor.is_account_manager):
        raise PermissionDenied


def _tell(kind: str, proposal: RegroupingProposal) -> None:
    outbox_record(
        kind=kind,
        subject=proposal,
        organisation_id=proposal.contract.organisation_id,
        payload={"contract": str(proposal.contract_id)},
    )
