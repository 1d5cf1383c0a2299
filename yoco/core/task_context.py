"""Tasks carry the number of the request that queued them, so that the lines of both are found together.

They carry when they were queued too: the age of the oldest message that waits is how far the workers are behind.
"""

import time
from collections.abc import Mapping
from contextvars import Token
from typing import Any

from celery.signals import before_task_publish, task_postrun, task_prerun
from structlog.contextvars import bind_contextvars, reset_contextvars

from yoco.core.logs import request_id

_bound: dict[str, Mapping[str, Token[Any]]] = {}  # by the task's id; in the embedded service threads run tasks


@before_task_publish.connect
def _publish(headers: dict[str, Any], **_: Any) -> None:
    headers["queued_at"] = time.time()
    if number := request_id():
        headers["request_id"] = number


@task_prerun.connect
def _begin(task_id: str, task: Any, **_: Any) -> None:
    context = {"task_id": task_id, "task": task.name}
    if number := getattr(task.request, "request_id", None):
        context["request_id"] = number
    _bound[task_id] = bind_contextvars(**context)


@task_postrun.connect
def _end(task_id: str, **_: Any) -> None:
    reset_contextvars(**_bound.pop(task_id, {}))
