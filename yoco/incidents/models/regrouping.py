"""A person's correction of which incidents tell of one root event."""

from django.db import models
from django.utils import timezone

from yoco.accounts.models import User
from yoco.core.ids import uuid7
from yoco.incidents.models.incident import Incident


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
