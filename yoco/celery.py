"""The Celery application; its tasks are three lines that call a service with ids."""

import logging.config
import os
from typing import Any

from celery import Celery
from celery.signals import setup_logging

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "yoco.settings")

app = Celery("yoco")
app.config_from_object("django.conf:settings", namespace="CELERY")
# Celery's current application belongs to a thread; without this, a web server's other threads would queue into nowhere.
app.set_default()
app.autodiscover_tasks()


@setup_logging.connect
def _logging(**_: Any) -> None:
    """Workers and beat write as the web does; Celery would set up its own."""
    from django.conf import settings

    logging.config.dictConfig(settings.LOGGING)
