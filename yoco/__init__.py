"""The YOCO service: takes incident reports, decides which failures were resolved without loss, and owns the credit ledger."""

from yoco.celery import app as celery_app

__all__ = ["celery_app"]
