"""The life of a key after its creation: rotation with overlap, expiry, revocation at once."""

import datetime

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from yoco.accounts.models import AgentKey, Scope, User
from yoco.accounts.services import agent_key_create
from yoco.core.audit import audit_record
from yoco.core.problem import DomainError

OVERLAP = datetime.timedelta(days=7)


def keys_live(*, at: datetime.datetime | None = None) -> QuerySet[AgentKey]:
    """Keys that are accepted at `at`, now by default."""
    now = at or timezone.now()
    return AgentKey.objects.filter(Q(expires_at=None) | Q(expires_at__gt=now), revoked_at=None)


@transaction.atomic
def agent_key_rotate(
    *, key: AgentKey, actor: User | None, overlap: datetime.timedelta = OVERLAP
) -> tuple[AgentKey, str]:
    """A successor of a live key and its text, shown once. The old key is accepted for `overlap` more, at most.

    Raises DomainError for a key that is not live, for an end that has passed, or when two of its name are live: one
    must end before another is made.
    """
    if overlap <= datetime.timedelta():
        raise DomainError(
            _("The old key cannot end in the past. Choose a later time, or revoke it."), code="overlap_passed"
        )
    live = keys_live().select_for_update().filter(pk=key.pk).first()
    if live is None:
        raise DomainError(_("This key has ended. Create a new one instead."), code="key_not_live")
    successor, text = agent_key_create(
        organisation=live.organisation,
        contract=live.contract,
        scope=Scope(live.scope),
        name=live.name,
        actor=actor,
        expires_at=None,
    )
    ends_at = timezone.now() + overlap
    if live.expires_at is None or live.expires_at > ends_at:
        AgentKey.objects.filter(pk=live.pk).update(expires_at=ends_at)
    audit_record(
        action="key.rotated",
        actor=actor,
        subject=live,
        organisation_id=live.organisation_id,
        data={"name": live.name, "lookup": live.lookup, "successor": successor.lookup},
    )
    return successor, text


@transaction.atomic
def agent_key_revoke(*, key: AgentKey, actor: User | None, reason: str = "") -> None:
    """From now on the key is refused. Revoking it again changes nothing."""
    if not AgentKey.objects.filter(pk=key.pk, revoked_at=None).update(revoked_at=timezone.now()):
        return
    audit_record(
        action="key.revoked",
        actor=actor,
        subject=key,
        organisation_id=key.organisation_id,
        data={"name": key.name, "lookup": key.lookup, "reason": reason},
    )
