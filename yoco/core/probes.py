"""What an orchestrator asks: does this process live (`/healthz`), and can it serve (`/readyz`)?

Readiness names the part that fails, never the error's text: that can hold addresses and user names, and anyone may ask.
"""

import redis
from django.conf import settings
from django.db import Error, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

SECONDS_FOR_REDIS = 2.0


@never_cache
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """The process answers; it asks nothing of the database, whose restart must not restart this."""
    return JsonResponse({"status": "ok"})


@never_cache
@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """200 if requests can be served, else 503; `checks` gives "ok" or a reason for each part.

    Redis is named and does not decide: without it requests are served all the same.
    """
    checks = _database_checks()
    ready = all(said == "ok" for said in checks.values())
    if settings.REDIS_URL:
        checks["redis"] = _redis_check()
    return JsonResponse({"status": "ok" if ready else "not ready", "checks": checks}, status=200 if ready else 503)


def _database_checks() -> dict[str, str]:
    try:
        executor = MigrationExecutor(connection)
        missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except Error:
        return {"database": "does not answer", "migrations": "unknown while the database does not answer"}
    said = f"{len(missing)} not applied: run manage.py migrate" if missing else "ok"
    return {"database": "ok", "migrations": said}


def _redis_check() -> str:
    try:
        with redis.Redis.from_url(
            settings.REDIS_URL, socket_timeout=SECONDS_FOR_REDIS, socket_connect_timeout=SECONDS_FOR_REDIS
        ) as client:
            client.ping()
    except redis.RedisError:
        return "does not answer"
    return "ok"
