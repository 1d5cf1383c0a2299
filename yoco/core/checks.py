"""Deployment checks beside Django's own: what the embedded default may do and production may not."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections

from yoco.core.database_roles import excess


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
    if settings.SECRET_KEY in settings.KEY_PEPPERS.values():
        return [
            Warning(
                "The agents' keys are peppered with SECRET_KEY, so whoever reads one knows the other, and changing "
                "SECRET_KEY ends every key.",
                hint="Set KEY_PEPPERS to a secret of its own, 1=….",
                id="yoco.W001",
            )
        ]
    return []


@register(Tags.database, deploy=True)
def serving_role(app_configs: Any, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Runs with `check --deploy --database default`, as the role that serves."""
    return [
        Error(
            f"The role of DATABASE_URL {fault}.",
            hint="Serve as yoco_app and migrate as yoco_owner (deploy/postgres/roles.sql, docs/security.md).",
            id="yoco.E002",
        )
        for alias in databases or []
        if connections[alias].vendor == "postgresql"
        for fault in excess(connections[alias])
    ]
