"""Tasks: three lines that call a service with ids. Each may run twice, or never: what is due is in the database."""

import uuid

from celery import shared_task
from django.utils import timezone

from yoco.notify import fan_out, mail, webhooks
from yoco.notify.models import MailDelivery, WebhookDelivery

# Later attempts are left to the tick; a message that waits longer than this in the broker is no use.
COUNTDOWN_MAX_S = 60


@shared_task(ignore_result=True)
def tick() -> None:
    """Does everything that is due, once."""
    from yoco.notify.due import tick_do  # it queues the tasks below

    tick_do(as_of=timezone.now())


@shared_task(ignore_result=True)
def event_announce(event_id: str) -> None:
    """Makes and starts the deliveries of one event, right after its commit."""
    key = uuid.UUID(event_id)
    if not fan_out.event_fan_out(event_id=key):
        return
    for pk in WebhookDelivery.objects.filter(event=key).values_list("pk", flat=True):
        webhook_deliver.delay(str(pk))
    for pk in MailDelivery.objects.filter(event=key).values_list("pk", flat=True):
        mail_send.delay(str(pk))


@shared_task(ignore_result=True)
def webhook_deliver(delivery_id: str) -> None:
    """One attempt to deliver; if it fails the first time, the second follows soon."""
    wait = webhooks.webhook_deliver(delivery_id=uuid.UUID(delivery_id))
    if wait is not None and wait <= COUNTDOWN_MAX_S:
        webhook_deliver.apply_async([delivery_id], countdown=wait + 0.1)


@shared_task(ignore_result=True)
def mail_send(delivery_id: str) -> None:
    """One attempt to send an e-mail."""
    mail.mail_send(delivery_id=uuid.UUID(delivery_id))
