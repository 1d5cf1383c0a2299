"""Tasks of the guarantee."""

from celery import shared_task
from django.utils import timezone

from yoco.guarantee.analytics.jobs import job_run
from yoco.guarantee.due import due_work_do


@shared_task
def analytics_compute(job_id: str) -> None:
    """Answers one question of the analytics."""
    job_run(job_id=job_id)


@shared_task
def tick() -> None:
    """Does everything that is due, once."""
    due_work_do(as_of=timezone.now())
