"""Erasing a person: whatever says who they are goes; what they did stays, as the deed of "erased person N".

Audit log, ledger, statements, objections and comments name people by an id alone, so nothing of them changes and every
hash still holds. docs/data.md says it for people.
"""

import json
import uuid
from dataclasses import dataclass, field

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from allauth.usersessions.models import UserSession
from django.contrib.sessions.models import Session
from django.db import models, transaction
from django.db.models import Max, Q, QuerySet
from django.db.models.functions import Cast
from django.utils import timezone

from yoco.accounts.key_services import keys_live
from yoco.accounts.models import Invitation, Membership, Organisation, Role, Scope, User
from yoco.core.audit import audit_record
from yoco.core.models import AuditEntry
from yoco.core.problem import DomainError
from yoco.credits.models import Credit, LedgerTransaction
from yoco.guarantee.models import ImportFile, Proposal, Statement
from yoco.incidents.models import Comment, Dispute, Exclusion, Regrouping, RegroupingProposal
from yoco.notify.models import MailDelivery, MailPreference

# A domain that never exists (RFC 2606).
NOWHERE = "erased.invalid"
# Where people write words of their own, or words about each other, that are kept.
WORDS: list[tuple[type[models.Model], tuple[str, ...]]] = [
    (AuditEntry, ("data",)),
    (Comment, ("text",)),
    (Dispute, ("text", "decision_note")),
    (Exclusion, ("note", "decision_note")),
    (Regrouping, ("reason",)),
    (RegroupingProposal, ("reason", "decision_note")),
    (Proposal, ("reason", "decision_note", "said")),
    (Credit, ("issue_reason", "ended_reason", "review_reason")),
    (LedgerTransaction, ("reason",)),
    (Statement, ("reason",)),
    (ImportFile, ("name",)),
]
SHOWN = 5


@dataclass
class Erasure:
    """What was erased: rows by what they are, and what a person has to look at, in words."""

    label: str
    already: bool = False
    erased: dict[str, int] = field(default_factory=dict)
    remains: list[str] = field(default_factory=list)


def person_erase(*, person: str, reason: str, leave_without_owner: bool = False, dry_run: bool = False) -> Erasure:
    """Erases who has this e-mail address or id. A second time changes nothing; `dry_run` does it and takes it back.

    An address without an account is erased from the invitations that were sent to it. Raises DomainError for the only
    owner of an organisation unless it may be left without one, for the last account manager, and for a reason, which
    is kept, that is empty or says whom it is about.
    """
    with transaction.atomic():
        user = _found(person)
        names = [name for name in ((user.name, user.email) if user else (person,)) if len(name) > 2]
        if not reason.strip():
            raise DomainError("Say why: the reason is kept in the audit log.", code="reason_missing")
        if any(name.lower() in reason.lower() for name in names):
            raise DomainError("The reason is kept: leave name, address and id out of it.", code="reason_names")
        if user is None:
            done = _address_erase(person.lower())
        elif user.erased_number is not None:
            done = Erasure(label=str(user), already=True)
        else:
            done = _user_erase(user, reason=reason.strip(), leave_without_owner=leave_without_owner)
            done.remains += _named_still(names)
        if dry_run:
            transaction.set_rollback(True)
    return done


def _found(person: str) -> User | None:
    try:
        by = Q(pk=uuid.UUID(person))
    except ValueError:
        by = Q(email__iexact=person)
    return User.objects.filter(by).first()


def _address_erase(address: str) -> Erasure:
    """Invitations of somebody who never had an account here."""
    found = Invitation.objects.filter(email=address)
    for invitation in found:
        audit_record(
            action="invitation.erased", actor=None, subject=invitation, organisation_id=invitation.organisation_id
        )
    number = _invitations_erase(found, address=f"erased@{NOWHERE}")
    return Erasure(label=f"erased@{NOWHERE}", already=not number, erased={"invitations": number} if number else {})


def _invitations_erase(found: QuerySet[Invitation], *, address: str) -> int:
    keys = list(found.values_list("pk", flat=True))
    rows = Invitation.objects.filter(pk__in=keys)
    rows.filter(accepted_at=None, revoked_at=None).update(revoked_at=timezone.now())
    return rows.update(email=address)


def _user_erase(user: User, *, reason: str, leave_without_owner: bool) -> Erasure:
    held = list(
        Organisation.objects.filter(memberships__user=user, memberships__revoked_at=None)
        .order_by("pk")
        .distinct()
        .values_list("pk", flat=True)
    )
    # Whoever changes members holds these rows too.
    list(Organisation.objects.select_for_update().filter(pk__in=held).order_by("pk"))
    user = User.objects.select_for_update().get(pk=user.pk)
    if not leave_without_owner:
        _owners_remain(user)
    _managers_remain(user)
    number = (User.objects.aggregate(last=Max("erased_number"))["last"] or 0) + 1
    erased = _belongings_erase(user, address=f"erased-{number}@{NOWHERE}")
    erased["memberships"] = _memberships_end(user)
    remains = [
        f"The key {key} ({key.name}) was made by this person and goes on working; revoke it if they hold it."
        for key in keys_live().filter(created_by=user, scope=Scope.READ)
    ]
    _name_erase(user, number)
    erased = {what: count for what, count in erased.items() if count}
    audit_record(
        action="person.erased",
        actor=None,
        subject=user,
        data={"number": number, "reason": reason, "erased": erased},
    )
    return Erasure(label=str(user), erased=erased, remains=remains)


def _owners_remain(user: User) -> None:
    """Raises DomainError if an organisation would be left without an owner."""
    owners = Membership.objects.filter(role=Role.OWNER, revoked_at=None, user__is_active=True)
    theirs = owners.filter(user=user).select_related("organisation").order_by("organisation__name")
    others = set(owners.exclude(user=user).values_list("organisation_id", flat=True))
    only = [row.organisation.name for row in theirs if row.organisation_id not in others]
    if only:
        raise DomainError(
            f"They are the only owner of {', '.join(only)}. Make someone else owner there first (page of the "
            "organisation, Members), or pass --leave-without-owner: an account manager can then invite a new one.",
            code="last_owner",
        )


def _managers_remain(user: User) -> None:
    if not (user.is_account_manager and user.is_active):
        return
    if not User.objects.filter(is_account_manager=True, is_active=True).exclude(pk=user.pk).exists():
        raise DomainError(
            "They are the last account manager. Make another first: manage.py createsuperuser.", code="last_manager"
        )


def _belongings_erase(user: User, *, address: str) -> dict[str, int]:
    """All rows that exist only because of the person, and the invitations that name them; their numbers."""
    addresses = {user.email, *EmailAddress.objects.filter(user=user).values_list("email", flat=True)}
    sessions = UserSession.objects.filter(user=user)
    Session.objects.filter(session_key__in=list(sessions.values_list("session_key", flat=True))).delete()
    mine = Invitation.objects.filter(invited_by=user, accepted_at=None, revoked_at=None)
    mine.update(revoked_at=timezone.now())
    named = Invitation.objects.filter(Q(email__in={text.lower() for text in addresses}) | Q(accepted_by=user))
    member = Membership.objects.filter(user=user)
    return {
        "invitations": _invitations_erase(named, address=address),
        **{
            what: rows.delete()[0]
            for what, rows in (
                ("sessions", sessions),
                ("second factors", Authenticator.objects.filter(user=user)),
                ("e-mail addresses", EmailAddress.objects.filter(user=user)),
                ("single sign-ons", SocialAccount.objects.filter(user=user)),
                ("e-mails", MailDelivery.objects.filter(membership__in=member)),
                ("e-mail settings", MailPreference.objects.filter(membership__in=member)),
            )
        },
    }


def _memberships_end(user: User) -> int:
    live = list(Membership.objects.filter(user=user, revoked_at=None))
    for membership in live:
        audit_record(
            action="member.revoked",
            actor=None,
            subject=membership,
            organisation_id=membership.organisation_id,
            data={"user": str(user.pk), "role": membership.role, "erased": True},
        )
    return Membership.objects.filter(pk__in=[row.pk for row in live]).update(revoked_at=timezone.now())


def _name_erase(user: User, number: int) -> None:
    user.groups.clear()
    user.user_permissions.clear()
    user.set_unusable_password()
    user.name, user.email, user.language, user.time_zone = "", f"erased-{number}@{NOWHERE}", "", "UTC"
    user.is_active = user.is_account_manager = user.is_superuser = False
    user.last_login, user.erased_at, user.erased_number = None, timezone.now(), number
    user.save(
        update_fields=[
            *("name", "email", "password", "language", "time_zone", "last_login"),
            *("is_active", "is_account_manager", "is_superuser", "erased_at", "erased_number"),
        ]
    )


def _named_still(names: list[str]) -> list[str]:
    """Kept words that mention the person. Whether they must go is for people to judge: they may be evidence."""
    found = []
    for model, fields in WORDS:
        rows = model._default_manager.annotate(
            **{f"words_{name}": Cast(name, models.TextField()) for name in fields}  # JSON as its text
        )
        # SQLite keeps JSON with \u escapes.
        spellings = {text for name in names for text in (name, json.dumps(name)[1:-1])}
        said = Q()
        for name in fields:
            for text in spellings:
                said |= Q(**{f"words_{name}__icontains": text})
        keys = [str(pk) for pk in rows.filter(said).order_by("pk").values_list("pk", flat=True)]
        if keys:
            more = ", …" if len(keys) > SHOWN else ""
            found.append(
                f"{len(keys)} rows of {model._meta.db_table} still mention them: {', '.join(keys[:SHOWN])}{more}"
            )
    return found
