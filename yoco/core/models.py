"""The audit log: who did what to what, when. Append-only."""

from django.conf import settings
from django.db import models

from yoco.core.ids import uuid7


class AuditEntry(models.Model):
    """One action. `action` is a stable code such as `credit.approved`; people read it through a translated sentence."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    at = models.DateTimeField()
    action = models.CharField(max_length=64)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.PROTECT,
        related_name="+",
        help_text="Null for the system.",
    )
    organisation_id = models.UUIDField(null=True, db_index=True)
    subject_type = models.CharField(max_length=64)
    subject_id = models.CharField(max_length=64)
    data = models.JSONField(default=dict)

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [
            models.Index(fields=["subject_type", "subject_id"], name="audit_by_subject"),
            # Pages of the log, of one organisation (null: of no organisation) and of all.
            models.Index(fields=["organisation_id", "-at", "-id"], name="audit_by_organisation"),
            models.Index(fields=["-at", "-id"], name="audit_by_time"),
        ]


class OutboxEvent(models.Model):
    """Something that people or other systems must be told. Append-only and written in the transaction of the action.

    `kind` is a stable code such as `credit.approved`; `payload` carries ids only. Deliveries are kept apart.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    created_at = models.DateTimeField()
    kind = models.CharField(max_length=64)
    organisation_id = models.UUIDField(null=True, db_index=True)
    subject_type = models.CharField(max_length=64)
    subject_id = models.CharField(max_length=64)
    payload = models.JSONField(default=dict)

    class Meta:
        ordering = ["created_at", "id"]
        indexes = [models.Index(fields=["subject_type", "subject_id"], name="outbox_by_subject")]


class OutboxPending(models.Model):
    """An event that nobody has turned into deliveries yet. Whoever does removes the row in the same transaction."""

    event = models.OneToOneField(OutboxEvent, primary_key=True, on_delete=models.PROTECT, related_name="+")


class JobRun(models.Model):
    """When a recurring job last began and ended, and how: the tick, the proof of the ledger. One row each."""

    name = models.CharField(primary_key=True, max_length=40)
    began_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True, help_text="Of the last run that came to its end.")
    ok = models.BooleanField(default=False)
    detail = models.TextField(blank=True, help_text="What failed.")
