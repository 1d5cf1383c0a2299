"""Tasks of the guarantee."""

from celery import shared_task

from yoco.guarantee.analytics.jobs import job_run
from yoco.guarantee.proof import books_prove


@shared_task
def analytics_compute(job_id: str) -> None:
    """Answers one question of the analytics."""
    job_run(job_id=job_id)


@shared_task
def ledger_prove() -> None:
    """Proves the whole ledger and every statement."""
    books_prove()
