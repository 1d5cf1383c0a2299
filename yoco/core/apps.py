from django.apps import AppConfig
from django.conf import settings


class CoreConfig(AppConfig):
    name = "yoco.core"

    def ready(self) -> None:
        if settings.SENTRY_DSN:
            from yoco.core.sentry import sentry_start

            sentry_start()
        from yoco.core import (
            checks,  # noqa: F401  (registers the deployment checks)
            task_context,  # noqa: F401  (connects to Celery's signals)
        )
