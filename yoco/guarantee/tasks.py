"""Tasks of the guarantee."""

from celery import shared_task

from yoco.guarantee.analytics.jobs import job_run


@shared_task
def analytics_compute(job_id: str) -> None:
    """Answers one question of the analytics."""
    job_run(job_id=job_id)
