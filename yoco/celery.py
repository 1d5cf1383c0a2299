"""The Celery application; its tasks are three lines that call a service with ids."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "yoco.settings")

app = Celery("yoco")
app.config_from_object("django.conf:settings", namespace="CELERY")
# Celery's current application belongs to a thread; without this, a web server's other threads would queue into nowhere.
app.set_default()
app.autodiscover_tasks()
