from django.apps import AppConfig


class CoreConfig(AppConfig):
    name = "yoco.core"

    def ready(self) -> None:
        from yoco.core import (
            checks,  # noqa: F401  (registers the deployment checks)
            task_context,  # noqa: F401  (connects to Celery's signals)
        )
