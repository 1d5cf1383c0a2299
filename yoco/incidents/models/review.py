"""People's words on an incident: exclusions that an account manager proposes, disputes that a customer raises, and
comments of both."""

from django.db import models
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from yoco.accounts.models import User
from yoco.contracts.models import ExclusionReason
from yoco.core.ids import uuid7
from yoco.incidents.models.incident import Incident


class Decision(models.TextChoices):
    PENDING = "pending", _("Pending")
    ACCEPTED = "accepted", _("Accepted")
    REJECTED = "rejected", _("Rejected")
    WITHDRAWN = "withdrawn", _("Withdrawn")


class Exclusion(models.Model):
    """An incident is outside the denominator for a reason in the terms; the customer sees it and can dispute it."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    incident = models.ForeignKey(Incident, on_delete=models.PROTECT, related_name="exclusions")
    reason = models.CharField(max_length=24, choices=ExclusionReason.choices)
    note = models.TextField()
    proposed_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    proposed_at = models.DateTimeField(default=timezone.now)
    state = models.CharField(max_length=10, choices=Decision.choices, default=Decision.PENDING)
    decided_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    decided_at = models.DateTimeField(null=True)
    decision_note = models.TextField(blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["incident"], condition=Q(state__in=["pending", "accepted"]), name="exclusion_one_live"
            ),
            # The vendor gains by an exclusion, so whoever proposes one cannot approve it.
            models.CheckConstraint(
                condition=~Q(state="accepted") | (Q(decided_by__isnull=False) & ~Q(decided_by=F("proposed_by"))),
                name="exclusion_four_eyes",
            ),
            models.CheckConstraint(
                condition=Q(state="pending", decided_at=None) | (~Q(state="pending") & Q(decided_at__isnull=False)),
                name="exclusion_decided_has_time",
            ),
        ]


class Dispute(models.Model):
    """A customer's objection to where an incident was placed, with its decision."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    incident = models.ForeignKey(Incident, on_delete=models.PROTECT, related_name="disputes")
    text = models.TextField()
    against_outcome = models.CharField(max_length=12, help_text="Where the incident stood when the customer objected.")
    against_rule = models.CharField(max_length=40)
    raised_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    raised_at = models.DateTimeField(default=timezone.now)
    state = models.CharField(max_length=10, choices=Decision.choices, default=Decision.PENDING)
    decided_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    decided_at = models.DateTimeField(null=True)
    decision_note = models.TextField(blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["incident"], condition=Q(state="pending"), name="dispute_one_open"),
            models.CheckConstraint(
                condition=Q(state="pending", decided_at=None) | (~Q(state="pending") & Q(decided_at__isnull=False)),
                name="dispute_decided_has_time",
            ),
        ]


class Comment(models.Model):
    """What a person wrote on an incident, for the customer and the desk alike. It decides nothing. Append-only."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    incident = models.ForeignKey(Incident, on_delete=models.PROTECT, related_name="comments")
    text = models.TextField()
    by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    by_desk = models.BooleanField(help_text="Written as an account manager.")
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["at", "id"]
        constraints = [models.CheckConstraint(condition=~Q(text=""), name="comment_says_something")]
