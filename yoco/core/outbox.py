"""Writing the outbox. Call it inside the transaction of the action, so that neither exists without the other."""

import logging
import uuid
from typing import Any

from celery import current_app
from django.conf import settings
from django.db import models, transaction
from django.utils import timezone
from kombu.exceptions import OperationalError

from yoco.core.models import OutboxEvent, OutboxPending

log = logging.getLogger(__name__)


def outbox_record(
    *, kind: str, subject: models.Model, organisation_id: Any = None, payload: dict[str, Any] | None = None
) -> OutboxEvent:
    """Records one event about `subject`, to be delivered after commit. `payload` holds ids, never contents."""
    event = OutboxEvent.objects.create(
        created_at=timezone.now(),
        kind=kind,
        organisation_id=organisation_id,
        subject_type=subject._meta.label_lower,
        subject_id=str(subject.pk),
        payload=payload or {},
    )
    OutboxPending.objects.create(event=event)
    if not settings.CELERY_TASK_ALWAYS_EAGER:
        # Without a worker of its own a request must not wait for other people's servers: the next tick delivers.
        transaction.on_commit(lambda: _announce(event.pk))
    return event


def _announce(event_id: uuid.UUID) -> None:
    """Tells the workers at once. Where the broker is away, the next tick finds the event in the database."""
    try:
        current_app.send_task(settings.OUTBOX_TASK, args=[str(event_id)], retry=False)
    except (OperationalError, OSError):
        log.warning("The broker does not answer; event %s waits for the next tick", event_id)
