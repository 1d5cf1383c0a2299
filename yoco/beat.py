"""The beat's scheduler: Celery's, which keeps no file, and a stamp that tells a health check that it still sends.

A process that hangs looks like one that waits; only what was sent last, and when, tells them apart.
"""

from pathlib import Path
from typing import Any

from celery.beat import Scheduler
from django.conf import settings


class StampedScheduler(Scheduler):
    """Touches the file BEAT_STAMP when the beat begins and whenever the broker has taken a task from it."""

    def setup_schedule(self) -> None:
        super().setup_schedule()
        _stamp()

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        """Raises SchedulingError, and leaves the stamp alone, if the broker does not take the task."""
        sent = super().apply_async(*args, **kwargs)
        _stamp()
        return sent


def _stamp() -> None:
    if settings.BEAT_STAMP:
        Path(settings.BEAT_STAMP).touch()
