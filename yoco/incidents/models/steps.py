"""How fast runs went, hour by hour, as their heartbeats tell it."""

from django.db import models
from django.db.models import F, Q

from yoco.incidents.models.incident import Run


class StepHour(models.Model):
    """Steps of a run within one hour and the time they took: between the first word of one step and of a later one.

    At most one row an hour and run, whatever the number of heartbeats. Time in which the run stood still is in it; who
    reads leaves out the hours that an incident touches.
    """

    id = models.BigAutoField(primary_key=True)
    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="step_hours", db_index=False)
    hour = models.DateTimeField(help_text="Its first instant, UTC.")
    first_at = models.DateTimeField(help_text="From when on the steps are counted; may lie in the hour before.")
    last_at = models.DateTimeField()
    steps = models.BigIntegerField()
    took_ms = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "hour"], name="step_hour_unique"),
            models.CheckConstraint(
                condition=Q(steps__gt=0, took_ms__gt=0, last_at__gt=F("first_at")), name="step_hour_moves"
            ),
        ]
