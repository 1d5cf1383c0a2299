"""The YOCO service: takes incident reports, decides which were resolved without loss, owns the credit ledger."""

from yoco.celery import app as celery_app

__all__ = ["celery_app"]
