"""Token buckets: in Redis, where all web processes share them, or in this process."""

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from functools import cache

import redis

MAX_BUCKETS = 10_000
REDIS_TIMEOUT_S = 0.2
REDIS_REST_S = 5.0  # after a failure, so that not every request waits for a dead Redis

# The server's clock, so that all web processes count alike. Answers how long to wait, in microseconds; 0 lets pass.
TAKE = """
local now = redis.call('TIME')
local at = now[1] * 1000000 + now[2]
local rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = math.min(burst, (tonumber(bucket[1]) or burst) + (at - (tonumber(bucket[2]) or at)) * rate / 1000000)
local wait = 0
if tokens >= 1 then tokens = tokens - 1 else wait = math.ceil((1 - tokens) * 1000000 / rate) end
redis.call('HSET', KEYS[1], 'tokens', tostring(tokens), 'at', tostring(at))
redis.call('PEXPIRE', KEYS[1], math.ceil(burst / rate * 1000) + 1000)
return wait
"""


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_second` tokens flow in, at most `burst` gather; a request takes one."""

    per_second: float
    burst: int


class LocalBuckets:
    """Buckets of this process; the longest unused go first when there are too many."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, name: str, rate: Rate) -> float:
        """Seconds to wait; 0 when a token was taken."""
        now = time.monotonic()
        with self._lock:
            tokens, at = self._buckets.pop(name, (float(rate.burst), now))
            tokens = min(rate.burst, tokens + (now - at) * rate.per_second)
            wait = 0.0 if tokens >= 1 else (1 - tokens) / rate.per_second
            self._buckets[name] = (tokens if wait else tokens - 1, now)
            if len(self._buckets) > MAX_BUCKETS:
                self._buckets.popitem(last=False)
        return wait


class RedisBuckets:
    """Buckets that all web processes share. Raises redis.RedisError when Redis does not answer at once."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=REDIS_TIMEOUT_S)
        self._take = self._client.register_script(TAKE)
        self._down_until = 0.0

    def take(self, name: str, rate: Rate) -> float:
        """Seconds to wait; 0 when a token was taken."""
        if time.monotonic() < self._down_until:
            raise redis.ConnectionError("Redis did not answer a moment ago.")
        try:
            wait = self._take(keys=[f"rate:{name}"], args=[rate.per_second, rate.burst])
        except redis.RedisError:
            self._down_until = time.monotonic() + REDIS_REST_S
            raise
        return int(wait) / 1_000_000


@cache
def local_buckets() -> LocalBuckets:
    return LocalBuckets()


@cache
def redis_buckets(url: str) -> RedisBuckets:
    return RedisBuckets(url)
