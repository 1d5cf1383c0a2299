"""Rate limits: a bucket for each key, in Redis or in the process; without Redis no report is turned away."""

from typing import Any

import pytest
import redis

from tests.api.test_read import KeyClient
from tests.ingest.conftest import AgentClient
from tests.ingest.reports import heartbeat
from tests.people import World
from yoco.accounts.models import Scope
from yoco.accounts.services import agent_key_create
from yoco.core.buckets import LocalBuckets, Rate, RedisBuckets


@pytest.fixture
def slow(settings: Any) -> None:
    """One request every ten seconds, two at once."""
    settings.RATE_LIMITS = {"ingest": (0.1, 2), "read": (0.1, 2)}


def beat(world: World) -> int:
    body = heartbeat(at="2026-11-01T00:00:00Z")
    response = AgentClient(world.key_text).post("heartbeats", body)
    if response.status_code == 429:
        assert 1 <= int(response["Retry-After"]) <= 10
        assert response["Content-Type"] == "application/problem+json"
    return int(response.status_code)


def test_beyond_the_rate_is_429_with_retry_after(world: World, slow: None) -> None:
    assert [beat(world) for _ in range(4)] == [200, 200, 429, 429]


def test_keys_have_buckets_of_their_own(world: World, slow: None) -> None:
    assert [beat(world) for _ in range(3)] == [200, 200, 429]
    _, world.key_text = agent_key_create(
        organisation=world.organisation, contract=world.contract, scope=Scope.INGEST, name="b", actor=None
    )
    assert beat(world) == 200


def test_tokens_flow_back_up_to_the_burst() -> None:
    buckets, rate = LocalBuckets(), Rate(per_second=1000, burst=2)
    assert [buckets.take("a", rate) > 0 for _ in range(2)] == [False, False]
    wait = buckets.take("a", rate)
    while wait:
        assert wait <= 0.001
        wait = buckets.take("a", rate)


def test_without_redis_reports_pass_and_readers_count_in_the_process(world: World, slow: None, settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    assert [beat(world) for _ in range(5)] == [200] * 5
    _, text = agent_key_create(organisation=world.organisation, scope=Scope.READ, name="r", actor=None)
    reader = KeyClient(text)
    assert [reader.get("/api/v1/contracts").status_code for _ in range(3)] == [200, 200, 429]


@pytest.mark.redis
def test_redis_counts_for_all_processes(redis_url: str) -> None:
    redis.Redis.from_url(redis_url).flushdb()
    one, other, rate = RedisBuckets(redis_url), RedisBuckets(redis_url), Rate(per_second=0.1, burst=2)
    assert (one.take("a", rate), other.take("a", rate)) == (0, 0)
    assert 9 < one.take("a", rate) <= 10
    assert 9 < other.take("a", rate) <= 10
    assert other.take("b", rate) == 0
