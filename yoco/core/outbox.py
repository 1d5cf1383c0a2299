"""Writing the outbox. Call it inside the transaction of the action, so that neither exists without the other."""

from typing import Any

from django.db import models
from django.utils import timezone

from yoco.core.models import OutboxEvent


def outbox_record(
    *, kind: str, subject: models.Model, organisation_id: Any = None, payload: dict[str, str] | None = None
) -> OutboxEvent:
    """Records one event about `subject`, to be delivered after commit. `payload` holds ids, never contents."""
    return OutboxEvent.objects.create(
        created_at=timezone.now(),
        kind=kind,
        organisation_id=organisation_id,
        subject_type=subject._meta.label_lower,
        subject_id=str(subject.pk),
        payload=payload or {},
    )
