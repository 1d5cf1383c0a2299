"""Exclusions and disputes: who may say what until when, and what it does to the placing.

An account manager proposes an exclusion for a reason of the terms; the customer sees it at once; a second account
manager accepts it, and only then does the incident leave the ratio. The customer may dispute any placing until the
dispute window after the latest statement has passed; an upheld objection undoes an exclusion, or makes the incident
count as not resolved. A closed year keeps its statement; the restatement follows.
"""

import datetime

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from yoco.accounts.models import User
from yoco.contracts.locks import contracts_lock
from yoco.core.outbox import outbox_record
from yoco.core.problem import DomainError
from yoco.guarantee.models import Placement, Statement
from yoco.guarantee.placements import placements_refresh
from yoco.incidents import review
from yoco.incidents.models import Decision, Dispute, Exclusion, Incident


@transaction.atomic
def exclusion_propose(*, incident: Incident, reason: str, note: str, actor: User) -> Exclusion:
    """Proposes an exclusion; the customer sees it at once.

    Raises DomainError if the year's terms do not list the reason, PermissionDenied for all but account managers.
    """
    _account_manager(actor)
    placement = _held(incident)
    if placement.terms is None or reason not in placement.terms.exclusions:
        raise DomainError(_("The terms of this contract year do not list this exclusion."), code="reason_not_in_terms")
    exclusion = review.exclusion_propose(incident=incident, reason=reason, note=note, actor=actor)
    _tell("exclusion.proposed", incident, exclusion)
    return exclusion


@transaction.atomic
def exclusion_decide(*, exclusion: Exclusion, accept: bool, note: str, actor: User) -> Exclusion:
    """A second account manager accepts or rejects an exclusion. Raises DomainError for its proposer."""
    _account_manager(actor)
    _held(exclusion.incident)
    review.exclusion_decide(exclusion=exclusion, accept=accept, note=note, actor=actor)
    _place(exclusion.incident, "exclusion_decided")
    _tell(f"exclusion.{exclusion.state}", exclusion.incident, exclusion)
    return exclusion


@transaction.atomic
def exclusion_withdraw(*, exclusion: Exclusion, note: str, actor: User) -> Exclusion:
    """An account manager takes an exclusion back; from now on the evidence decides again."""
    _account_manager(actor)
    _held(exclusion.incident)
    review.exclusion_withdraw(exclusion=exclusion, note=note, actor=actor)
    _place(exclusion.incident, "exclusion_withdrawn")
    _tell("exclusion.withdrawn", exclusion.incident, exclusion)
    return exclusion


@transaction.atomic
def dispute_raise(*, incident: Incident, text: str, actor: User) -> Dispute:
    """A customer objects to where an incident stands. Raises DomainError after the window.

    The caller has checked that the incident is the customer's (accounts.access).
    """
    placement = _held(incident)
    until = dispute_open_until(placement=placement)
    if until is not None and timezone.now() >= until:
        raise DomainError(
            _("The window for objections ended on %(day)s.") % {"day": until.date().isoformat()}, code="window_over"
        )
    dispute = review.dispute_raise(
        incident=incident,
        text=text,
        actor=actor,
        against_outcome=placement.outcome,
        against_rule=placement.rule,
    )
    _tell("dispute.raised", incident, dispute)
    return dispute


@transaction.atomic
def dispute_decide(*, dispute: Dispute, accept: bool, note: str, actor: User) -> Dispute:
    """An account manager decides an objection, with a reason that the customer sees.

    Upheld, it withdraws an exclusion, proposed or accepted. Against an exclusion that is all, and the evidence decides
    again; against any other placing it makes the incident count as not resolved.
    """
    _account_manager(actor)
    _held(dispute.incident)
    review.dispute_decide(dispute=dispute, accept=accept, note=note, actor=actor)
    if accept:
        live = [Decision.PENDING, Decision.ACCEPTED]
        for exclusion in Exclusion.objects.filter(incident=dispute.incident_id, state__in=live):
            review.exclusion_withdraw(exclusion=exclusion, note=note, actor=actor)
        _place(dispute.incident, "dispute_upheld")
    _tell(f"dispute.{dispute.state}", dispute.incident, dispute)
    return dispute


@transaction.atomic
def dispute_withdraw(*, dispute: Dispute, actor: User) -> Dispute:
    """The customer takes an undecided objection back."""
    review.dispute_withdraw(dispute=dispute, actor=actor)
    _tell("dispute.withdrawn", dispute.incident, dispute)
    return dispute


def dispute_open_until(*, placement: Placement) -> datetime.datetime | None:
    """The first instant at which this placing can no longer be disputed; None while its year has no statement."""
    latest = Statement.objects.filter(year=placement.year_id).defer("canonical").order_by("-revision").first()
    if latest is None or placement.terms is None:
        return None
    return latest.created_at + datetime.timedelta(days=placement.terms.dispute_window_days)


def _held(incident: Incident) -> Placement:
    """The incident's placement, under its contract's lock: no year closes and nobody else decides meanwhile."""
    contracts_lock([incident.contract_id])
    placement = Placement.objects.select_related("terms", "year").filter(pk=incident.pk).first()
    if placement is None or placement.year_id is None:
        raise DomainError(_("This incident lies outside the contract."), code="outside_contract")
    return placement


def _place(incident: Incident, reason: str) -> None:
    placements_refresh(incident_ids=[incident.pk], reason=reason)


def _account_manager(actor: User) -> None:
    if not (actor.is_active and actor.is_account_manager):
        raise PermissionDenied


def _tell(kind: str, incident: Incident, row: Exclusion | Dispute) -> None:
    outbox_record(
        kind=kind,
        subject=row,
        organisation_id=incident.contract.organisation_id,
        payload={"incident": str(incident.public_id), "contract": str(incident.contract_id)},
    )
