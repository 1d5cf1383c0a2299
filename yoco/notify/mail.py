"""Sending e-mails: claim, write in the reader's language and zone, send, note what came of it."""

import datetime
import logging
import uuid
from smtplib import SMTPException
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from django.conf import settings
from django.core.mail import EmailMultiAlternatives
from django.db import transaction
from django.db.models import QuerySet
from django.template.loader import render_to_string
from django.utils import timezone, translation

from yoco.core.clock import local_midnight
from yoco.core.links import absolute
from yoco.notify.attempts import SECOND, jittered
from yoco.notify.digests import digest_subject, period_before, standings_of
from yoco.notify.kinds import TOPIC_OF, TOPICS
from yoco.notify.models import DeliveryState, MailDelivery
from yoco.notify.notices import notice_of
from yoco.notify.preferences import DIGEST, stop_token

log = logging.getLogger(__name__)

WAITS = (60, 300, 1800, 7200, 21_600, 43_200, 86_400)  # seconds between attempts


def mails_due(*, as_of: datetime.datetime) -> QuerySet[MailDelivery]:
    """What may be sent now, the longest waiting first."""
    return MailDelivery.objects.filter(state=DeliveryState.PENDING, due_at__lte=as_of).order_by("due_at", "pk")


def mail_send(*, delivery_id: uuid.UUID) -> None:
    """Sends one e-mail if it is due and nobody else is at it."""
    mail = _claim(delivery_id)
    if mail is None:
        return
    member = mail.membership
    if member.revoked_at is not None or not member.user.is_active:
        _end(mail, DeliveryState.DEAD, "No longer a member.")
        return
    message = message_of(mail)
    if message is None:
        _end(mail, DeliveryState.DEAD, "What it was about is gone.")
        return
    try:
        message.send()
    except (SMTPException, OSError) as error:
        log.warning("The e-mail %s was not sent: %s", mail.pk, error)
        _later(mail, f"{type(error).__name__}: {error}"[:300])
    else:
        _end(mail, DeliveryState.DELIVERED, "")


@transaction.atomic
def _claim(delivery_id: uuid.UUID) -> MailDelivery | None:
    now = timezone.now()
    due = mails_due(as_of=now).filter(pk=delivery_id).select_related("membership__user", "membership__organisation")
    mail = due.select_for_update(of=("self",), skip_locked=True).first()
    if mail is None:
        return None
    # A talk with a mail server is a handful of steps, each with this time-out.
    mail.due_at = now + 8 * settings.EMAIL_TIMEOUT * SECOND
    mail.claims += 1
    mail.tries += 1
    mail.save(update_fields=["due_at", "claims", "tries"])
    if mail.tries > len(WAITS) + 1:
        # Each try ended without a word: what it is about cannot be written, or ends the worker.
        _end(mail, DeliveryState.DEAD, "No attempt came to an end.")
        return None
    return mail


def _end(mail: MailDelivery, state: DeliveryState, error: str) -> None:
    _held(mail).update(state=state, ended_at=timezone.now(), error=error)


def _later(mail: MailDelivery, error: str) -> None:
    if mail.tries > len(WAITS):
        _end(mail, DeliveryState.DEAD, error)
        return
    _held(mail).update(due_at=timezone.now() + jittered(WAITS[mail.tries - 1]) * SECOND, error=error)


def _held(mail: MailDelivery) -> QuerySet[MailDelivery]:
    """The row, unless another worker has taken over meanwhile."""
    return MailDelivery.objects.filter(pk=mail.pk, claims=mail.claims, state=DeliveryState.PENDING)


def message_of(mail: MailDelivery) -> EmailMultiAlternatives | None:
    """The e-mail as its reader gets it; None if what it was about is gone."""
    user = mail.membership.user
    with translation.override(user.language or settings.LANGUAGE_CODE), timezone.override(ZoneInfo(user.time_zone)):
        if mail.event is not None:
            topic = TOPIC_OF[mail.event.kind]
            notice = notice_of(mail.event)
            if notice is None:
                return None
            subject, template = notice.subject, "mail/notice"
            context: dict[str, object] = {"notice": notice, "topic": TOPICS[topic]}
        else:
            topic, template = DIGEST, "mail/digest"
            context, subject = _digest(mail)
        stop = absolute("portal:mail_stop", stop_token(membership=mail.membership, topic=topic))
        context |= {
            "subject": subject,
            "organisation": mail.membership.organisation,
            "stop": stop,
            "settings": absolute("portal:mail_settings", mail.membership_id),
            "language": translation.get_language(),
        }
        message = EmailMultiAlternatives(
            subject=" ".join(subject.split()),  # names are free text, and a line break would end the header
            body=render_to_string(f"{template}.txt", context),
            to=[user.email],
            headers={
                # The same on every attempt: a mailbox can tell that it has this one already.
                "Message-ID": f"<{mail.pk}@{urlsplit(settings.SITE_URL).hostname}>",
                "List-Unsubscribe": f"<{stop}>",
                "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
                "Auto-Submitted": "auto-generated",
            },
        )
        message.attach_alternative(render_to_string(f"{template}.html", context), "text/html")
        return message


def _digest(mail: MailDelivery) -> tuple[dict[str, object], str]:
    assert mail.period_starts_on is not None
    first = period_before(digest=mail.digest, day=mail.period_starts_on)
    since = local_midnight(first, mail.membership.user.time_zone)
    context: dict[str, object] = {
        "standings": standings_of(membership=mail.membership, since=since),
        "first": first,
        "last": mail.period_starts_on - datetime.timedelta(days=1),
    }
    return context, digest_subject(digest=mail.digest, organisation=mail.membership.organisation.name)
