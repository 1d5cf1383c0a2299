"""Deployment checks beside Django's own: what the embedded default may do and production may not."""

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register


@register(Tags.security, deploy=True)
def production_secrets(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    if settings.SECRET_KEY.startswith("embedded-default"):
        return [
            Error(
                "SECRET_KEY is the embedded default, which everyone can read.",
                hint="Set SECRET_KEY (and KEY_PEPPERS) in the environment of every web and worker process.",
                id="yoco.E001",
            )
        ]
    return []
