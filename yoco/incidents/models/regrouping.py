"""A person's correction of which incidents tell of one root event."""

from django.db import models
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from yoco.accounts.models import User
from yoco.contracts.models import Contract
from yoco.core.ids import uuid7
from yoco.incidents.models.incident import Incident
from yoco.incidents.models.review import Decision


class RegroupingAction(models.TextChoices):
    MERGE = "merge", _("Merge with other incidents")
    SPLIT = "split", _("Split from its root event")
    REVERT = "revert", _("Let the rules group it again")


class Regrouping(models.Model):
    """An account manager moved an incident to a root event of its own or of others. Append-only; the latest holds."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    incident = models.ForeignKey(Incident, on_delete=models.PROTECT, related_name="regroupings")
    moved_to = models.UUIDField(null=True, help_text="Incidents moved to one key are one root event; null: the rules.")
    reason = models.TextField()
    by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-at", "-id"]


class RegroupingProposal(models.Model):
    """A regrouping from which the vendor would gain: it waits for a second account manager, seen by the customer."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    contract = models.ForeignKey(Contract, on_delete=models.PROTECT, related_name="+")
    action = models.CharField(max_length=10, choices=RegroupingAction.choices)
    incidents = models.ManyToManyField(Incident, related_name="regrouping_proposals")
    reason = models.TextField()
    proposed_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    proposed_at = models.DateTimeField(default=timezone.now)
    state = models.CharField(max_length=10, choices=Decision.choices, default=Decision.PENDING)
    decided_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    decided_at = models.DateTimeField(null=True)
    decision_note = models.TextField(blank=True)

    class Meta:
        ordering = ["-proposed_at", "-id"]
        constraints = [
            models.CheckConstraint(
                condition=~Q(state="accepted") | (Q(decided_by__isnull=False) & ~Q(decided_by=F("proposed_by"))),
                name="regrouping_four_eyes",
            ),
            models.CheckConstraint(
                condition=Q(state="pending", decided_at=None) | (~Q(state="pending") & Q(decided_at__isnull=False)),
                name="regrouping_decided_has_time",
            ),
        ]
