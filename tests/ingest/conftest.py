"""A client that posts as an agent does, and a clock that stands shortly after the reports were written."""

import datetime
import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest
import time_machine
from django.test import Client

from tests.ingest.reports import DETECTED
from tests.people import World

NOW = DETECTED + datetime.timedelta(minutes=10)


class AgentClient:
    """Posts to the API with an agent key."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._client = Client()

    def post(self, path: str, body: Any, *, raw: bool = False, compress: bool = False, **headers: str) -> Any:
        content = body if raw else json.dumps(body).encode()
        if compress:
            content = gzip.compress(content)
            headers["Content-Encoding"] = "gzip"
        return self._client.post(
            f"/api/v1/{path}",
            content,
            content_type="application/json",
            headers={"Authorization": f"Bearer {self.key}", **headers},
        )

    def reports(self, *reports: dict[str, Any]) -> list[dict[str, Any]]:
        """The results, whether any was valid or none."""
        results: list[dict[str, Any]] = self.post("reports", list(reports)).json()["results"]
        return results

    def statuses(self, *reports: dict[str, Any]) -> list[str]:
        return [result["status"] for result in self.reports(*reports)]

    def missing(self, heartbeat: dict[str, Any]) -> list[list[int]]:
        response = self.post("heartbeats", heartbeat)
        assert response.status_code == 200, response.content
        missing: list[list[int]] = response.json()["missing"]
        return missing


@pytest.fixture(autouse=True)
def now() -> Iterator[Any]:
    with time_machine.travel(NOW, tick=False) as clock:
        yield clock


@pytest.fixture
def agent(world: World) -> AgentClient:
    return AgentClient(world.key_text)
