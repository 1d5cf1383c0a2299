"""The daily task; `manage.py retention_apply` does the same."""

from celery import shared_task
from django.utils import timezone

from yoco.records.retention import retention_apply


@shared_task(ignore_result=True)
def retention() -> None:
    """Deletes what has been kept long enough. What is left over, the next day's does."""
    retention_apply(as_of=timezone.now())
