"""How many requests a key may make: one token bucket each, in Redis where there is one, otherwise in this process."""

import logging
from typing import TYPE_CHECKING

import redis
from django.conf import settings
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from yoco.accounts.models import AgentKey, Scope
from yoco.core.buckets import Rate, local_buckets, redis_buckets

if TYPE_CHECKING:  # DRF imports this module while it defines APIView.
    from rest_framework.views import APIView

log = logging.getLogger(__name__)


class KeyThrottle(BaseThrottle):
    """429 with `Retry-After` beyond the rate of a key's scope. When Redis is gone, reports pass: none may be lost."""

    _wait = 0.0

    def allow_request(self, request: Request, view: "APIView") -> bool:
        user = request.user
        if user is None or not user.is_authenticated:
            return True
        scope = Scope(user.scope) if isinstance(user, AgentKey) else Scope.READ
        rate = Rate(*settings.RATE_LIMITS[scope.value])
        self._wait = self._take(f"{scope.value}:{user.pk}", rate, scope)
        return self._wait == 0

    def _take(self, name: str, rate: Rate, scope: Scope) -> float:
        if settings.REDIS_URL:
            try:
                return redis_buckets(settings.REDIS_URL).take(name, rate)
            except redis.RedisError as error:
                log.warning("rate limit: Redis does not answer (%s)", type(error).__name__)
                if scope is Scope.INGEST:
                    return 0.0
        return local_buckets().take(name, rate)

    def wait(self) -> float:
        return self._wait
