"""Faults go to Sentry, or to whatever speaks its protocol, where SENTRY_DSN names one; without it nothing is loaded.

An event holds the trace without variables, the route, the request's number and no person: no address, cookie, header,
body, query, argument of a task or user; and secrets are blotted out as in the log.
"""

import json
from typing import TYPE_CHECKING, Any

from django.conf import settings

from yoco.core.logs import Secrets, request_id

if TYPE_CHECKING:
    from sentry_sdk.types import Event

PERSONAL = ("user", "breadcrumbs", "extra", "request", "contexts", "modules")


def sentry_start() -> None:
    """Once in each process."""
    import sentry_sdk

    sentry_sdk.init(
        dsn=settings.SENTRY_DSN,
        environment=settings.SENTRY_ENVIRONMENT,
        send_default_pii=False,
        include_local_variables=False,
        max_request_body_size="never",
        max_breadcrumbs=0,
        auto_session_tracking=False,
        before_send=_without_persons,
    )


def _without_persons(event: "Event", hint: dict[str, Any]) -> "Event | None":
    kept: dict[str, Any] = {name: value for name, value in event.items() if name not in PERSONAL}
    if number := request_id():
        kept["tags"] = {**kept.get("tags", {}), "request_id": number}
    if "logentry" in kept:
        kept["logentry"] = {name: text for name, text in kept["logentry"].items() if name != "params"}
    clean: Event = json.loads(Secrets(settings.SECRET_VALUES).blot(json.dumps(kept, default=str)))
    return clean
