"""What has to leave the service: deliveries of outbox events to webhook endpoints and to people, and digests.

A delivery is `pending` until it is `delivered` or `dead`. `due_at` says when a worker may take a pending one; whoever
takes it moves `due_at` past the longest attempt, so that nobody else does and a killed worker's turn comes again.
"""

import secrets

from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from yoco.accounts.models import Membership, Organisation, User
from yoco.core.ids import uuid7
from yoco.core.models import OutboxEvent


class DeliveryState(models.TextChoices):
    PENDING = "pending", _("Waiting")
    DELIVERED = "delivered", _("Delivered")
    DEAD = "dead", _("Given up")


def seed_new() -> str:
    """Random part of a signing secret (notify.secrets)."""
    return secrets.token_hex(16)


class Endpoint(models.Model):
    """An address of an organisation that is told of events. Its secret is derived (notify.secrets), never stored.

    `failures` in a row open the circuit until `open_until`; then one delivery tries. `failing_since` is their first.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    organisation = models.ForeignKey(Organisation, on_delete=models.PROTECT, related_name="webhook_endpoints")
    name = models.CharField(max_length=80)
    url = models.URLField(max_length=500)
    kinds = models.JSONField(default=list, help_text="Kinds of events it is told of; empty means every kind.")
    seed = models.CharField(max_length=32, default=seed_new)
    pepper = models.PositiveSmallIntegerField()
    old_seed = models.CharField(max_length=32, blank=True)
    old_pepper = models.PositiveSmallIntegerField(null=True)
    old_until = models.DateTimeField(null=True, help_text="Until then the secret before this one signs too.")
    failures = models.PositiveIntegerField(default=0)
    failing_since = models.DateTimeField(null=True)
    open_until = models.DateTimeField(null=True)
    disabled_at = models.DateTimeField(null=True)
    disabled_because = models.CharField(max_length=10, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    created_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")

    class Meta:
        ordering = ["created_at", "id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(disabled_at=None, disabled_because="")
                | Q(disabled_at__isnull=False, disabled_because__in=["person", "failing"]),
                name="endpoint_disabled_because",
            ),
            models.CheckConstraint(
                condition=Q(old_until=None, old_pepper=None, old_seed="")
                | Q(old_until__isnull=False, old_pepper__isnull=False) & ~Q(old_seed=""),
                name="endpoint_old_secret_complete",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class WebhookDelivery(models.Model):
    """One event for one endpoint. `body` is written once, so that a replay sends the same bytes under the same id."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    event = models.ForeignKey(OutboxEvent, on_delete=models.PROTECT, related_name="webhook_deliveries")
    endpoint = models.ForeignKey(Endpoint, on_delete=models.PROTECT, related_name="deliveries", db_index=False)
    body = models.TextField()
    state = models.CharField(max_length=9, choices=DeliveryState.choices, default=DeliveryState.PENDING)
    tries = models.PositiveIntegerField(default=0, help_text="Attempts since it was made or replayed.")
    claims = models.PositiveIntegerField(default=0, help_text="Grows with every claim: names the worker's turn.")
    due_at = models.DateTimeField(default=timezone.now)
    created_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["event", "endpoint"], name="webhook_delivery_once"),
            models.CheckConstraint(
                condition=Q(state="pending", ended_at=None)
                | Q(state__in=["delivered", "dead"], ended_at__isnull=False),
                name="webhook_delivery_state",
            ),
        ]
        indexes = [
            # The sweep looks for what is due; the page lists an endpoint's latest.
            models.Index(fields=["due_at"], condition=Q(state="pending"), name="webhook_delivery_due"),
            models.Index(fields=["endpoint", "-created_at"], name="webhook_delivery_listed"),
            # The metrics count the dead.
            models.Index(fields=["ended_at"], condition=Q(state="dead"), name="webhook_delivery_dead"),
        ]


class WebhookAttempt(models.Model):
    """One request and what came of it. `status` is null where no answer came; then `error` says why."""

    id = models.BigAutoField(primary_key=True)
    delivery = models.ForeignKey(WebhookDelivery, on_delete=models.CASCADE, related_name="attempts")
    at = models.DateTimeField()
    milliseconds = models.PositiveIntegerField()
    status = models.PositiveSmallIntegerField(null=True)
    error = models.CharField(max_length=300, blank=True)
    excerpt = models.CharField(max_length=1000, blank=True, help_text="How the answer's body begins.")

    class Meta:
        ordering = ["-id"]


class MailDelivery(models.Model):
    """One e-mail to one member: the notice of an event, or the digest of a period. Written when it is sent."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    membership = models.ForeignKey(Membership, on_delete=models.PROTECT, related_name="+", db_index=False)
    event = models.ForeignKey(OutboxEvent, null=True, on_delete=models.PROTECT, related_name="+")
    digest = models.CharField(max_length=7, blank=True, help_text="weekly or monthly; empty for a notice.")
    period_starts_on = models.DateField(null=True, help_text="Of a digest: the day in the reader's zone it is due.")
    state = models.CharField(max_length=9, choices=DeliveryState.choices, default=DeliveryState.PENDING)
    tries = models.PositiveIntegerField(default=0)
    claims = models.PositiveIntegerField(default=0)
    due_at = models.DateTimeField(default=timezone.now)
    created_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True)
    error = models.CharField(max_length=300, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["event", "membership"], condition=Q(event__isnull=False), name="mail_notice_once"
            ),
            models.UniqueConstraint(
                fields=["membership", "digest", "period_starts_on"],
                condition=Q(event__isnull=True),
                name="mail_digest_once",
            ),
            models.CheckConstraint(
                condition=Q(event__isnull=False, digest="", period_starts_on=None)
                | Q(event=None, digest__in=["weekly", "monthly"], period_starts_on__isnull=False),
                name="mail_notice_or_digest",
            ),
            models.CheckConstraint(
                condition=Q(state="pending", ended_at=None)
                | Q(state__in=["delivered", "dead"], ended_at__isnull=False),
                name="mail_delivery_state",
            ),
        ]
        indexes = [
            models.Index(fields=["due_at"], condition=Q(state="pending"), name="mail_delivery_due"),
            models.Index(fields=["ended_at"], condition=Q(state="dead"), name="mail_delivery_dead"),
        ]


class Digest(models.TextChoices):
    NEVER = "", _("Never")
    WEEKLY = "weekly", _("Every week, on Monday")
    MONTHLY = "monthly", _("Every month, on the first day")


class MailPreference(models.Model):
    """Which e-mails a member wants. Without a row: every notice that the role gets, and no digest."""

    membership = models.OneToOneField(Membership, primary_key=True, on_delete=models.CASCADE, related_name="mail")
    muted = models.JSONField(default=list, help_text="Topics (notify.kinds) the member does not want.")
    digest = models.CharField(max_length=7, choices=Digest.choices, blank=True)
    digest_since = models.DateTimeField(default=timezone.now, help_text="No digest of a period before it.")

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(digest__in=Digest.values), name="mail_digest_known")]
