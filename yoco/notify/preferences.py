"""Which e-mails a member gets: in the settings, and by the link at the end of every e-mail."""

from django.core import signing
from django.db import transaction
from django.utils import timezone

from yoco.accounts.models import Membership, User
from yoco.core.audit import audit_record
from yoco.notify.kinds import TOPICS
from yoco.notify.models import Digest, MailPreference

SALT = "yoco.notify.stop"
DIGEST = "digest"


@transaction.atomic
def mail_preference_set(*, membership: Membership, muted: list[str], digest: str, actor: User | None) -> None:
    """Replaces what a member wants. A digest that is switched on begins with the next period."""
    held, _made = MailPreference.objects.select_for_update().get_or_create(membership=membership)
    if digest != held.digest:
        held.digest_since = timezone.now()
    held.muted, held.digest = sorted(set(muted) & TOPICS.keys()), Digest(digest).value
    held.save(update_fields=["muted", "digest", "digest_since"])
    audit_record(
        action="mail.preference_set",
        actor=actor,
        subject=membership,
        organisation_id=membership.organisation_id,
        data={"muted": held.muted, "digest": held.digest},
    )


def stop_token(*, membership: Membership, topic: str) -> str:
    """Signs the wish of one member to get no more of a topic, or no more digests. It does not expire."""
    return signing.dumps([str(membership.pk), topic], salt=SALT)


def stop_read(token: str) -> tuple[Membership, str] | None:
    """The membership and the topic of a link, or None if we never made it."""
    try:
        key, topic = signing.loads(token, salt=SALT)
    except signing.BadSignature:
        return None
    membership = Membership.objects.select_related("organisation", "user").filter(pk=key).first()
    return (membership, topic) if membership is not None else None


@transaction.atomic
def mail_stop(*, membership: Membership, topic: str) -> None:
    """Doing it twice changes nothing."""
    held, _made = MailPreference.objects.select_for_update().get_or_create(membership=membership)
    if topic == DIGEST:
        mail_preference_set(membership=membership, muted=held.muted, digest="", actor=membership.user)
    else:
        mail_preference_set(
            membership=membership, muted=[*held.muted, topic], digest=held.digest, actor=membership.user
        )
