"""Writing accounts: organisations, members, keys."""

import hmac
from datetime import datetime
from itertools import chain, count
from typing import TYPE_CHECKING

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.text import slugify
from django.utils.translation import gettext as _

from yoco.accounts.keys import key_digest, key_generate, key_parse, key_text
from yoco.accounts.models import AgentKey, Invitation, Membership, Organisation, Role, Scope, User
from yoco.core.audit import audit_record
from yoco.core.compiled import compiled
from yoco.core.problem import DomainError

if TYPE_CHECKING:
    from yoco.contracts.models import Contract

# Of one name, for one contract and scope: the old one and its successor.
LIVE_KEYS = 2


@transaction.atomic
def organisation_create(*, name: str, slug: str | None = None, actor: User | None) -> Organisation:
    """A new customer. Without a `slug` it gets one from its name, numbered if it is taken.

    Raises DomainError for an empty name.
    """
    if not name.strip():
        raise DomainError(_("An organisation has a name."), code="name_missing")
    if slug is None:
        stem = slugify(name)[:40] or "customer"
        free = (text for text in chain([stem], (f"{stem}-{n}" for n in count(2))))
        slug = next(text for text in free if not Organisation.objects.filter(slug=text).exists())
    organisation = Organisation.objects.create(name=name, slug=slug)
    audit_record(action="organisation.created", actor=actor, subject=organisation, organisation_id=organisation.pk)
    return organisation


@transaction.atomic
def member_add(*, organisation: Organisation, user: User, role: Role, actor: User | None) -> Membership:
    """Gives a user a role. A second live membership of the same user is refused by the database."""
    membership = Membership.objects.create(organisation=organisation, user=user, role=role)
    audit_record(
        action="member.added",
        actor=actor,
        subject=membership,
        organisation_id=organisation.pk,
        data={"user": str(user.pk), "role": role.value},
    )
    return membership


@transaction.atomic
def agent_key_create(
    *,
    organisation: Organisation,
    scope: Scope,
    name: str,
    actor: User | None,
    contract: "Contract | None" = None,
    expires_at: datetime | None = None,
) -> tuple[AgentKey, str]:
    """A new key and its text, which is shown once and stored nowhere.

    Raises DomainError for an expiry that has passed, and for a third live key of one name: two are for rotation.
    """
    now = timezone.now()
    if expires_at is not None and expires_at <= now:
        raise DomainError(_("A key cannot end before it begins; choose a later expiry."), code="key_expired")
    # Two people who create at once wait for each other here.
    Organisation.objects.select_for_update(no_key=True).get(pk=organisation.pk)
    same = AgentKey.objects.filter(
        Q(expires_at=None) | Q(expires_at__gt=now),
        organisation=organisation,
        contract=contract,
        scope=scope,
        name=name,
        revoked_at=None,
    )
    if same.count() >= LIVE_KEYS:
        raise DomainError(
            _("Two keys named “%(name)s” are live already. Revoke one of them, or choose another name.")
            % {"name": name},
            code="two_live_keys",
        )
    parts = key_generate(scope.value)
    pepper = max(settings.KEY_PEPPERS)
    key = AgentKey.objects.create(
        organisation=organisation,
        contract=contract,
        name=name,
        scope=scope,
        lookup=parts.lookup,
        digest=key_digest(parts.secret, settings.KEY_PEPPERS[pepper]),
        pepper=pepper,
        created_by=actor,
        expires_at=expires_at,
    )
    audit_record(
        action="key.created",
        actor=actor,
        subject=key,
        organisation_id=organisation.pk,
        data={"name": name, "scope": scope.value, "lookup": parts.lookup},
    )
    return key, key_text(parts)


@compiled
def _keys_live(*, lookup: str, scope: str, now: datetime) -> QuerySet[AgentKey]:
    live = Q(expires_at=None) | Q(expires_at__gt=now)
    keys = AgentKey.objects.select_related("organisation", "contract")
    return keys.filter(live, lookup=lookup, scope=scope, revoked_at=None)


def agent_key_verify(text: str) -> AgentKey | None:
    """The live key with this text, or None. An unknown lookup costs as much as a wrong secret and answers alike."""
    parts = key_parse(text)
    if parts is None:
        return None
    now = timezone.now()
    key = next(iter(_keys_live(lookup=parts.lookup, scope=parts.scope, now=now)), None)
    pepper = settings.KEY_PEPPERS.get(key.pepper if key else max(settings.KEY_PEPPERS), "")
    digest = key_digest(parts.secret, pepper)
    if key is None or not pepper or not hmac.compare_digest(digest, key.digest):
        return None
    # At most one write a minute: the time is for people, and a write per request would serialise the ingest.
    if key.last_used_at is None or (now - key.last_used_at).total_seconds() > 60:
        AgentKey.objects.filter(pk=key.pk).update(last_used_at=now)
    return key


@transaction.atomic
def reader_update(*, user: User, **fields: str) -> None:
    """How a person wants to read: any of `name`, `language`, `time_zone`, `theme`, which the caller has validated."""
    unknown = fields.keys() - {"name", "language", "time_zone", "theme"}
    if unknown:
        raise TypeError(f"Not a setting of a reader: {', '.join(sorted(unknown))}.")
    User.objects.filter(pk=user.pk).update(**fields)
    # The name stands with the person alone, where it can be erased; nothing can be erased from the audit log.
    data = {field: value for field, value in fields.items() if field != "name"}
    audit_record(action="reader.updated", actor=user, subject=user, data={"changed": sorted(fields), **data})


@transaction.atomic
def member_role_set(*, membership: Membership, role: Role, actor: User) -> None:
    """Gives a member another role. Raises DomainError if that would leave the organisation without an owner, and if
    someone who is no owner makes or unmakes one."""
    held = _members_held(membership)
    if Role.OWNER in (role, held.role):
        _owners_decide(held, actor)
    if held.role == Role.OWNER and role != Role.OWNER:
        _another_owner(held)
    Membership.objects.filter(pk=held.pk).update(role=role)
    audit_record(
        action="member.role_changed",
        actor=actor,
        subject=held,
        organisation_id=held.organisation_id,
        data={"user": str(held.user_id), "before": held.role, "role": role.value},
    )


@transaction.atomic
def member_revoke(*, membership: Membership, actor: User) -> None:
    """Ends a membership, and what this member has invited to, at once.

    Raises DomainError for the last owner, and if someone who is no owner removes one.
    """
    held = _members_held(membership)
    if held.role == Role.OWNER:
        _owners_decide(held, actor)
        _another_owner(held)
    now = timezone.now()
    Membership.objects.filter(pk=held.pk).update(revoked_at=now)
    # Else whoever is removed could come back under another address.
    Invitation.objects.filter(
        organisation=held.organisation_id, invited_by=held.user_id, accepted_at=None, revoked_at=None
    ).update(revoked_at=now)
    audit_record(
        action="member.revoked",
        actor=actor,
        subject=held,
        organisation_id=held.organisation_id,
        data={"user": str(held.user_id), "role": held.role},
    )


def _members_held(membership: Membership) -> Membership:
    """The live membership, while nobody else changes the organisation's members."""
    Organisation.objects.select_for_update().get(pk=membership.organisation_id)
    held = Membership.objects.filter(pk=membership.pk, revoked_at=None).first()
    if held is None:
        raise DomainError(_("This membership has ended already."), code="already_revoked")
    return held


def _owners_decide(membership: Membership, actor: User) -> None:
    mine = Membership.objects.filter(
        organisation=membership.organisation_id, user=actor, revoked_at=None, role=Role.OWNER
    )
    if not mine.exists():
        raise DomainError(_("Only an owner can make or remove an owner."), code="owners_only")


def _another_owner(membership: Membership) -> None:
    others = Membership.objects.filter(
        organisation=membership.organisation_id, revoked_at=None, role=Role.OWNER, user__is_active=True
    ).exclude(pk=membership.pk)
    if not others.exists():
        raise DomainError(
            _("An organisation keeps at least one owner. Make someone else owner first."), code="last_owner"
        )
