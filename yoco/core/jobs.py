"""Recurring jobs: whose turn it is, and when each last ran. Metrics and `manage.py doctor` read it."""

import datetime

from django.db.models import F, Q
from django.utils import timezone

from yoco.core.models import JobRun

TICK = "tick"
LEDGER_VERIFY = "ledger_verify"


def job_note(*, name: str, ok: bool, detail: str = "") -> None:
    """Writes down that the job has come to its end."""
    ended = {"ended_at": timezone.now(), "ok": ok, "detail": detail}
    JobRun.objects.update_or_create(name=name, defaults=ended)


def job_claim(*, name: str, every: datetime.timedelta, longest: datetime.timedelta, as_of: datetime.datetime) -> bool:
    """True for the one who shall run a job now: it is due, and nobody has begun it within its `longest` duration."""
    JobRun.objects.get_or_create(name=name)
    due = Q(ended_at=None) | Q(ended_at__lte=as_of - every)
    free = Q(began_at=None) | Q(began_at__lte=as_of - longest) | Q(began_at__lte=F("ended_at"))
    return JobRun.objects.filter(due, free, name=name).update(began_at=as_of) == 1
