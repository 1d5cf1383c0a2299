from django.apps import AppConfig


class CoreConfig(AppConfig):
    name = "yoco.core"

    def ready(self) -> None:
        from yoco.core import checks  # noqa: F401  (registers the deployment checks)
