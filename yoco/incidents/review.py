"""People's words on an incident, as rows with their audit entries. What they do to the guarantee is decided above.

`guarantee.reviews` calls what concerns exclusions and disputes; it checks terms and windows and places the incident
anew in the same transaction. A comment changes no placing.
"""

from typing import Any

from django.db import IntegrityError, models, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from yoco.accounts.models import User
from yoco.core.audit import audit_record
from yoco.core.outbox import outbox_record
from yoco.core.problem import DomainError
from yoco.incidents.models import Comment, Decision, Dispute, Exclusion, Incident


def exclusion_propose(*, incident: Incident, reason: str, note: str, actor: User) -> Exclusion:
    """Proposes to leave an incident out of the ratio. Raises DomainError if one is proposed or accepted already."""
    note = reason_stated(note)
    try:
        with transaction.atomic():
            exclusion = Exclusion.objects.create(incident=incident, reason=reason, note=note, proposed_by=actor)
    except IntegrityError as error:
        raise DomainError(_("This incident has an exclusion already."), code="exclusion_exists") from error
    _record("exclusion.proposed", exclusion, actor, reason=reason, note=note)
    return exclusion


def exclusion_decide(*, exclusion: Exclusion, accept: bool, note: str, actor: User) -> Exclusion:
    """Accepts or rejects a proposed exclusion. Raises DomainError for its proposer and if it is decided already."""
    note = reason_stated(note)
    if exclusion.proposed_by_id == actor.pk:
        raise DomainError(_("Whoever proposed an exclusion cannot decide it; a second person must."), code="four_eyes")
    state = Decision.ACCEPTED if accept else Decision.REJECTED
    decision_take(exclusion, [Decision.PENDING], state, note, actor)
    _record(f"exclusion.{state}", exclusion, actor, note=note)
    return exclusion


def exclusion_withdraw(*, exclusion: Exclusion, note: str, actor: User) -> Exclusion:
    """Takes an exclusion back, proposed or accepted. Raises DomainError if it is not live."""
    note = reason_stated(note)
    decision_take(exclusion, [Decision.PENDING, Decision.ACCEPTED], Decision.WITHDRAWN, note, actor)
    _record("exclusion.withdrawn", exclusion, actor, note=note)
    return exclusion


def dispute_raise(*, incident: Incident, text: str, actor: User, against_outcome: str, against_rule: str) -> Dispute:
    """A customer objects to where an incident stands. Raises DomainError while an objection is undecided."""
    text = reason_stated(text)
    try:
        with transaction.atomic():
            dispute = Dispute.objects.create(
                incident=incident,
                text=text,
                raised_by=actor,
                against_outcome=against_outcome,
                against_rule=against_rule,
            )
    except IntegrityError as error:
        raise DomainError(_("An objection to this incident waits for its decision."), code="dispute_exists") from error
    _record("dispute.raised", dispute, actor, text=text, against=f"{against_outcome}/{against_rule}")
    return dispute


def dispute_decide(*, dispute: Dispute, accept: bool, note: str, actor: User) -> Dispute:
    """Upholds or rejects an objection, with a reason. Raises DomainError if it is decided already."""
    note = reason_stated(note)
    state = Decision.ACCEPTED if accept else Decision.REJECTED
    decision_take(dispute, [Decision.PENDING], state, note, actor)
    _record(f"dispute.{state}", dispute, actor, note=note)
    return dispute


def dispute_withdraw(*, dispute: Dispute, actor: User) -> Dispute:
    """The customer takes an undecided objection back. Raises DomainError if it is decided."""
    decision_take(dispute, [Decision.PENDING], Decision.WITHDRAWN, "", actor)
    _record("dispute.withdrawn", dispute, actor)
    return dispute


@transaction.atomic
def comment_write(*, incident: Incident, text: str, actor: User) -> Comment:
    """Adds a comment for both sides to read. Raises DomainError for an empty one.

    The caller has checked that the writer may (accounts.access).
    """
    text = text.strip()
    if not text:
        raise DomainError(_("Write something first."), code="comment_empty")
    comment = Comment.objects.create(incident=incident, text=text, by=actor, by_desk=actor.is_account_manager)
    _record("incident.commented", comment, actor)
    outbox_record(
        kind="incident.commented",
        subject=comment,
        organisation_id=incident.contract.organisation_id,
        payload={"contract": str(incident.contract_id), "incident": str(incident.public_id), "by": str(actor.pk)},
    )
    return comment


def decision_take(row: models.Model, states: list[str], state: str, note: str, actor: User) -> None:
    """Compare-and-set: of two people who decide at once, one is told that it is decided already."""
    decided: dict[str, Any] = {
        "state": state,
        "decided_by": actor,
        "decided_at": timezone.now(),
        "decision_note": note,
    }
    if type(row)._default_manager.filter(pk=row.pk, state__in=states).update(**decided) != 1:
        raise DomainError(_("This is decided already."), code="decided_already")
    row.refresh_from_db()


def reason_stated(text: str) -> str:
    """Raises DomainError for an empty reason."""
    text = text.strip()
    if not text:
        raise DomainError(_("Say why: the other side sees the reason."), code="reason_missing")
    return text


def _record(action: str, row: Exclusion | Dispute | Comment, actor: User, **data: Any) -> None:
    audit_record(
        action=action,
        actor=actor,
        subject=row,
        organisation_id=row.incident.contract.organisation_id,
        data={"incident": str(row.incident.public_id), **data},
    )
