"""Exclusions and disputes: who may say what until when, and what it does to the placing.

An account manager proposes an exclusion for a reason of the terms; the customer sees it at once; a second account
manager accepts it, and only then does the incident leave the ratio. The customer may dispute any placing until the
dispute window after the latest statement has passed, or a proposed exclusion; an upheld objection undoes the exclusion,
or makes the incident count as not resolved. A closed year keeps its statement; the restatement follows.
"""

import datetime
from typing import Literal

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from yoco.accounts.models import User
from yoco.contracts.locks import contracts_lock
from yoco.core.outbox import outbox_record
from yoco.core.problem import DomainError
from yoco.guarantee.labels import rule_sentence
from yoco.guarantee.models import Outcome, Placement, Statement
from yoco.guarantee.placements import placements_refresh
from yoco.incidents import review
from yoco.incidents.models import Decision, Dispute, Exclusion, Incident

# What an objection is raised against: where the incident stands, or the exclusion that is proposed or accepted.
Target = Literal["placing", "exclusion"]


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
def dispute_raise(*, incident: Incident, text: str, actor: User, against: Target | None = None) -> Dispute:
    """A customer objects to where an incident stands, or to its exclusion. Raises DomainError after the window.

    An exclusion that is only proposed can be objected to as well: then upholding ends the exclusion and no more.
    Without `against` the objection is to a live exclusion if there is one. The caller has checked that the incident is
    the customer's (accounts.access).
    """
    placement = _held(incident, anywhere=True)
    until = dispute_open_until(placement=placement)
    if until is not None and timezone.now() >= until:
        raise DomainError(
            _("The window for objections ended on %(day)s.") % {"day": until.date().isoformat()}, code="window_over"
        )
    exclusion = exclusion_live(incident=incident)
    if against == "exclusion" and exclusion is None:
        raise DomainError(_("There is no exclusion to object to any more."), code="exclusion_gone")
    stands: tuple[str, str] = (placement.outcome, placement.rule)
    if exclusion is not None and against != "placing":
        stands = (Outcome.EXCLUDED, f"excluded_{exclusion.reason}")
    dispute = review.dispute_raise(
        incident=incident, text=text, actor=actor, against_outcome=stands[0], against_rule=stands[1]
    )
    _tell("dispute.raised", incident, dispute)
    return dispute


@transaction.atomic
def dispute_decide(*, dispute: Dispute, accept: bool, note: str, actor: User) -> Dispute:
    """An account manager decides an objection, with a reason that the customer sees.

    Upheld, it withdraws an exclusion, proposed or accepted. Against an exclusion that is all, and the evidence decides
    again; against any other placing it makes the incident count as not resolved (`dispute_effect` says it in words).
    """
    _account_manager(actor)
    placement = _held(dispute.incident, anywhere=True)
    review.dispute_decide(dispute=dispute, accept=accept, note=note, actor=actor)
    if accept:
        placed_anew = {dispute.incident_id}
        for exclusion in _exclusions_at_issue(dispute, placement):
            review.exclusion_withdraw(exclusion=exclusion, note=note, actor=actor)
            placed_anew.add(exclusion.incident_id)
        placements_refresh(incident_ids=placed_anew, reason="dispute_upheld")
    _tell(f"dispute.{dispute.state}", dispute.incident, dispute)
    return dispute


def _exclusions_at_issue(dispute: Dispute, placement: Placement) -> QuerySet[Exclusion]:
    """The incident's live exclusion; for one that was excluded with its unit, those of the unit."""
    live = Exclusion.objects.filter(state__in=[Decision.PENDING, Decision.ACCEPTED]).select_related(
        "incident__contract"
    )
    if dispute.against_rule == "excluded_with_unit":
        return live.filter(incident__placement__unit_key=placement.unit_key)
    return live.filter(incident=dispute.incident_id)


def exclusion_live(*, incident: Incident) -> Exclusion | None:
    """The exclusion of an incident that is proposed or accepted, if any; the database allows one."""
    return incident.exclusions.filter(state__in=[Decision.PENDING, Decision.ACCEPTED]).first()


def dispute_effect(*, dispute: Dispute, placement: Placement) -> str:
    """What upholding the objection does, or has done, as a sentence for both sides. `placement` is its incident's."""
    if dispute.against_outcome == Outcome.EXCLUDED:
        return _("Upheld, it ends the exclusion, and the evidence alone decides where the incident stands.")
    if placement.terms is not None and placement.year is not None and placement.year.guaranteed_from is not None:
        return _("Upheld, it makes the incident count as not resolved, and ends an exclusion that is proposed.")
    why = rule_sentence(placement.rule)
    return _(
        "Upheld, it is on record and changes no figure, because no guarantee covers that time. %(why)s If its times "
        "are corrected or the guarantee is extended to it, it counts as not resolved."
    ) % {"why": why}


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


def _held(incident: Incident, *, anywhere: bool = False) -> Placement:
    """The incident's placement, under its contract's lock: no year closes and nobody else decides meanwhile.

    Raises DomainError for an incident outside the contract's years, unless it may lie `anywhere`.
    """
    contracts_lock([incident.contract_id])
    placement = Placement.objects.select_related("terms", "year").filter(pk=incident.pk).first()
    if placement is None or (placement.year_id is None and not anywhere):
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
