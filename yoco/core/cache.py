"""The cache of production: Redis, shared by all processes; while Redis is away, this process's memory.

Sign-in limits are counted in it. Without the second half, nobody could sign in while Redis is down; with it, limits
still hold, in each process by itself.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

import redis
from django.core.cache.backends.locmem import LocMemCache
from django.core.cache.backends.redis import RedisCache

from yoco.core.buckets import REDIS_REST_S

log = logging.getLogger(__name__)


class RedisOrLocalCache(RedisCache):
    """Single values only: what limits and sign-on need of a cache."""

    def __init__(self, server: str | list[str], params: dict[str, Any]) -> None:
        super().__init__(server, params)
        self._local = LocMemCache("while-redis-is-away", {})
        self._down_until = 0.0

    def add(self, *args: Any, **kwargs: Any) -> bool:
        return bool(self._either(super().add, self._local.add, *args, **kwargs))

    def get(self, *args: Any, **kwargs: Any) -> Any:
        return self._either(super().get, self._local.get, *args, **kwargs)

    def set(self, *args: Any, **kwargs: Any) -> None:
        self._either(super().set, self._local.set, *args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> bool:
        return bool(self._either(super().delete, self._local.delete, *args, **kwargs))

    def _either(self, shared: Callable[..., Any], local: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if time.monotonic() >= self._down_until:
            try:
                return shared(*args, **kwargs)
            except redis.RedisError as error:
                log.warning("cache: Redis does not answer (%s)", type(error).__name__)
                self._down_until = time.monotonic() + REDIS_REST_S
        return local(*args, **kwargs)
