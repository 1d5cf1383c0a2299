"""Writing the audit log. Call it inside the transaction of the action, so that neither exists without the other."""

from typing import Any

from django.db import models
from django.utils import timezone

from yoco.core.models import AuditEntry


def audit_record(
    *,
    action: str,
    actor: models.Model | None,
    subject: models.Model,
    organisation_id: Any = None,
    data: dict[str, Any] | None = None,
) -> AuditEntry:
    """Records one action on `subject`. `data` holds what changed, JSON-serialisable, without secrets."""
    return AuditEntry.objects.create(
        at=timezone.now(),
        action=action,
        actor_id=actor.pk if actor is not None else None,
        organisation_id=organisation_id,
        subject_type=subject._meta.label_lower,
        subject_id=str(subject.pk),
        data=data or {},
    )
