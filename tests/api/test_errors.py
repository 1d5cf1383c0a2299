"""Whatever goes wrong under /api/ is answered as problem+json, also where no view of ours has the last word."""

import json
import logging
from typing import Any

import pytest
from django.db import OperationalError
from django.http import HttpResponse
from django.test import Client

from tests.ingest.reports import report
from tests.people import World
from yoco.api.ingest import ReportsView
from yoco.portal.middleware import ReaderMiddleware


@pytest.fixture
def calm() -> Client:
    """A client that shows the answer of a server that failed, as people get it."""
    return Client(raise_request_exception=False)


def post(client: Client, world: World) -> Any:
    headers = {"Authorization": f"Bearer {world.key_text}"}
    return client.post("/api/v1/reports", report(), content_type="application/json", headers=headers)


def problem_of(response: HttpResponse, status: int) -> dict[str, Any]:
    assert response.status_code == status
    assert response["Content-Type"] == "application/problem+json"
    body: dict[str, Any] = json.loads(response.content)
    assert body["status"] == status
    assert body["detail"]
    return body


def test_a_fault_of_ours_is_a_problem_with_its_number(
    calm: Client, world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(self: ReportsView, request: object) -> None:
        raise ZeroDivisionError("the secret figure 42")

    monkeypatch.setattr(ReportsView, "post", fails)
    with caplog.at_level(logging.ERROR, logger="yoco.api.errors"):
        response = post(calm, world)
    body = problem_of(response, 500)
    assert body["type"] == "urn:yoco:problem:internal"
    assert "secret" not in response.content.decode()
    assert response["X-Request-Id"] == body["request_id"]
    (record,) = [record for record in caplog.records if record.name == "yoco.api.errors"]
    assert body["request_id"] in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ZeroDivisionError)


@pytest.mark.parametrize(("fault", "status"), [(OperationalError("gone"), 503), (RuntimeError("gone"), 500)])
def test_a_fault_before_any_view_is_a_problem(
    calm: Client, world: World, monkeypatch: pytest.MonkeyPatch, fault: Exception, status: int
) -> None:
    def fails(self: ReaderMiddleware, request: object) -> HttpResponse:
        raise fault

    monkeypatch.setattr(ReaderMiddleware, "__call__", fails)
    response = post(Client(raise_request_exception=False), world)
    problem_of(response, status)
    assert response.headers.get("Retry-After") == ("5" if status == 503 else None)
    page = calm.get("/")
    assert (page.status_code, page["Content-Type"]) == (status, "text/html; charset=utf-8")
    assert page.headers.get("Retry-After") == ("5" if status == 503 else None)
    assert f">{status}<" in page.content.decode()


def test_an_address_of_no_version_is_a_problem(calm: Client, db: None) -> None:
    assert problem_of(calm.get("/api/v2/reports"), 404)["type"] == "urn:yoco:problem:not_found"
    assert problem_of(calm.get("/api/"), 404)


def test_a_host_that_is_not_served_is_a_problem(calm: Client, db: None) -> None:
    problem_of(calm.get("/api/v1/contracts", headers={"Host": "elsewhere.example"}), 400)


def test_pages_stay_pages(calm: Client, db: None) -> None:
    response = calm.get("/nowhere/")
    assert (response.status_code, response["Content-Type"]) == (404, "text/html; charset=utf-8")
