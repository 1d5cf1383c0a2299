"""Invitations: a role in an organisation for whoever can read an e-mail address. The link works once, for seven days.

Only a hash of the link's token is stored; sending again makes a new token and ends the old one.
"""

import datetime

from django.core.mail import EmailMessage
from django.db import transaction
from django.db.models import QuerySet
from django.template.loader import render_to_string
from django.utils import timezone, translation
from django.utils.translation import gettext as _

from yoco.accounts.mail import language_of, mail_send
from yoco.accounts.models import Invitation, Membership, Organisation, Role, User
from yoco.accounts.services import member_add
from yoco.core.audit import audit_record
from yoco.core.links import absolute, link_token, token_digest
from yoco.core.problem import DomainError

LIFETIME = datetime.timedelta(days=7)
OPEN_AT_ONCE = 100  # of one organisation, so that a stolen session cannot mail the world


def invitations_open(*, email: str | None = None) -> QuerySet[Invitation]:
    """Invitations that can still be accepted, of one address where it is given."""
    rows = Invitation.objects.filter(accepted_at=None, revoked_at=None, expires_at__gt=timezone.now())
    return rows if email is None else rows.filter(email=email.lower())


def invitation_by_token(token: str) -> Invitation | None:
    """The open invitation that this link belongs to."""
    return invitations_open().select_related("organisation", "invited_by").filter(digest=token_digest(token)).first()


@transaction.atomic
def invitation_create(*, organisation: Organisation, email: str, role: Role, actor: User) -> Invitation:
    """Invites an address and mails the link after the commit; an earlier invitation of the address ends.

    Raises DomainError for a member's address, for an owner invited by someone who is none, and beyond the limit.
    """
    email = email.lower()
    # Two people who invite at once wait for each other here.
    Organisation.objects.select_for_update(no_key=True).get(pk=organisation.pk)
    live = Membership.objects.filter(organisation=organisation, revoked_at=None)
    if live.filter(user__email=email).exists():
        raise DomainError(_("%(email)s is a member already.") % {"email": email}, code="already_member")
    if role == Role.OWNER and not may_invite_owner(organisation=organisation, user=actor):
        raise DomainError(_("Only an owner can invite an owner."), code="owners_only")
    now = timezone.now()
    Invitation.objects.filter(organisation=organisation, email=email, accepted_at=None, revoked_at=None).update(
        revoked_at=now
    )
    if invitations_open().filter(organisation=organisation).count() >= OPEN_AT_ONCE:
        raise DomainError(
            _("%(count)d invitations are open already. Withdraw some, or wait until they are accepted.")
            % {"count": OPEN_AT_ONCE},
            code="too_many_invitations",
        )
    token, digest = link_token()
    invitation = Invitation.objects.create(
        organisation=organisation,
        email=email,
        role=role,
        digest=digest,
        invited_by=actor,
        created_at=now,
        expires_at=now + LIFETIME,
    )
    _record(invitation, "invitation.created", actor)
    mail_send(_message(invitation, token))
    return invitation


@transaction.atomic
def invitation_revoke(*, invitation: Invitation, actor: User) -> None:
    """The link is dead from now on. Raises DomainError if it has been used or withdrawn."""
    if not Invitation.objects.filter(pk=invitation.pk, accepted_at=None, revoked_at=None).update(
        revoked_at=timezone.now()
    ):
        raise DomainError(_("This invitation is no longer open."), code="invitation_over")
    _record(invitation, "invitation.revoked", actor)


@transaction.atomic
def invitation_take(*, invitation: Invitation, user: User) -> Membership:
    """The invited person becomes a member. Raises DomainError for another address and if the invitation is over."""
    if user.email.lower() != invitation.email:
        raise DomainError(_("This invitation is for %(email)s.") % {"email": invitation.email}, code="other_address")
    taken = invitations_open().filter(pk=invitation.pk).update(accepted_at=timezone.now(), accepted_by=user)
    if not taken:
        raise DomainError(_("This invitation is no longer open."), code="invitation_over")
    _record(invitation, "invitation.accepted", user)
    held = Membership.objects.filter(organisation=invitation.organisation_id, user=user, revoked_at=None).first()
    return held or member_add(
        organisation=invitation.organisation, user=user, role=Role(invitation.role), actor=invitation.invited_by
    )


@transaction.atomic
def invited_user_create(*, invitation: Invitation, name: str, password: str, language: str, time_zone: str) -> User:
    """A new account for the invited address, which the link has proven, and its membership. Raises as
    `invitation_take`."""
    # Two clicks at once wait for each other here; the second finds the invitation accepted.
    if invitations_open().select_for_update().filter(pk=invitation.pk).first() is None:
        raise DomainError(_("This invitation is no longer open."), code="invitation_over")
    user = User.objects.create_user(invitation.email, password, name=name, language=language, time_zone=time_zone)
    audit_record(action="user.created", actor=user, subject=user, organisation_id=invitation.organisation_id)
    invitation_take(invitation=invitation, user=user)
    return user


def may_invite_owner(*, organisation: Organisation, user: User) -> bool:
    """An owner; or, while an organisation has none, an account manager, who thereby hands it over."""
    owners = Membership.objects.filter(
        organisation=organisation, revoked_at=None, role=Role.OWNER, user__is_active=True
    ).values_list("user_id", flat=True)
    return user.pk in owners or (user.is_account_manager and not owners)


def _record(invitation: Invitation, action: str, actor: User) -> None:
    audit_record(
        action=action,
        actor=actor,
        subject=invitation,
        organisation_id=invitation.organisation_id,
        data={"role": invitation.role},  # the address stands in the invitation alone, where it can be erased
    )


def _message(invitation: Invitation, token: str) -> EmailMessage:
    language = language_of(invitation.email) or translation.get_language()
    with translation.override(language):
        link = absolute("portal:invitation", token)
        context = {"invitation": invitation, "link": link}
        subject = _("%(person)s invites you to %(organisation)s on YOCO") % {
            "person": invitation.invited_by,
            "organisation": invitation.organisation.name,
        }
        subject = " ".join(subject.split())  # names are free text, and a line break would end the header
        return EmailMessage(subject, render_to_string("account/email/invitation.txt", context), to=[invitation.email])
