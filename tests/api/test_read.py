"""The read endpoints: each shows one's own objects only, to people by membership and to keys by organisation."""

import datetime
import json
import uuid
from typing import Any

import pytest
import time_machine
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.ingest.conftest import AgentClient
from tests.ingest.reports import report
from tests.people import World
from yoco.accounts.models import Scope
from yoco.accounts.services import agent_key_create
from yoco.guarantee.services import years_close
from yoco.incidents.models import Incident

LISTS = ["contracts", "contract-years", "incidents", "statements", "credits"]
# Two months after the end of the contract year in which the report falls.
LATER = datetime.datetime(2027, 11, 15, tzinfo=datetime.UTC)


def client_of(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


class KeyClient:
    """Reads with a key."""

    def __init__(self, text: str) -> None:
        self._headers = {"Authorization": f"Bearer {text}"}

    def get(self, path: str) -> Any:
        return Client().get(path, headers=self._headers)


@pytest.fixture
def full(world: World) -> World:
    """A year that fell short: incidents, a statement and a proposed credit, for Acme and for the stranger."""
    with time_machine.travel(datetime.datetime(2026, 11, 2, 9, 10, tzinfo=datetime.UTC), tick=False):
        for key in (world.key_text, world.stranger_key_text):
            lost = report(resolution="checkpoint_restart", progress__checkpoint_loaded=True, trigger__xid=95)
            lost |= {"seq": 2, "where": {"node": "node-3", "rank": 3}}
            assert AgentClient(key).statuses(report(), lost) == ["created", "created"]
    with time_machine.travel(LATER, tick=False):
        years_close(as_of=LATER)
    return world


@pytest.fixture
def reader(full: World) -> KeyClient:
    _, text = agent_key_create(organisation=full.organisation, scope=Scope.READ, name="reader", actor=full.owner)
    return KeyClient(text)


def rows(client: Any, path: str) -> list[dict[str, Any]]:
    response = client.get(f"/api/v1/{path}")
    assert response.status_code == 200, response.content
    results: list[dict[str, Any]] = response.json()["results"]
    return results


@pytest.mark.parametrize("name", LISTS)
def test_everyone_sees_their_own_and_account_managers_all(full: World, reader: KeyClient, name: str) -> None:
    mine = rows(reader, name)
    assert mine
    assert rows(client_of(full.viewer), name) == mine
    strangers = rows(client_of(full.stranger), name)
    assert strangers
    assert {row["id"] for row in mine}.isdisjoint(row["id"] for row in strangers)
    everything = rows(client_of(full.account_manager), name)
    assert len(everything) == len(mine) + len(strangers)
    for row in mine:
        assert reader.get(f"/api/v1/{name}/{row['id']}").json()["id"] == row["id"]
        response = client_of(full.stranger).get(f"/api/v1/{name}/{row['id']}")
        assert response.status_code == 404
        assert response["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("name", LISTS)
def test_nobody_reads_without_a_key_that_may(full: World, name: str) -> None:
    assert Client().get(f"/api/v1/{name}").status_code == 401
    response = KeyClient(full.key_text).get(f"/api/v1/{name}")
    assert response.status_code == 403
    assert "scope" in response.json()["detail"]
    assert KeyClient(full.key_text).get(f"/api/v1/{name}/{uuid.uuid4()}").status_code == 403


@pytest.mark.parametrize("name", LISTS)
def test_queries_do_not_grow_with_the_page(full: World, name: str) -> None:
    one, all_ = client_of(full.viewer), client_of(full.account_manager)
    counts = []
    for client in (one, all_):
        client.get(f"/api/v1/{name}")
        with CaptureQueriesContext(connection) as queries:
            client.get(f"/api/v1/{name}")
        counts.append(len(queries))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("name", LISTS)
def test_unknown_ids_and_wrong_filters_are_clear(full: World, reader: KeyClient, name: str) -> None:
    assert reader.get(f"/api/v1/{name}/{uuid.uuid4()}").status_code == 404
    response = reader.get(f"/api/v1/{name}/7")
    assert (response.status_code, response["Content-Type"]) == (404, "application/problem+json")
    if name != "contracts":
        response = reader.get(f"/api/v1/{name}?contract=nonsense")
        assert response.status_code == 400
        assert "contract" in response.json()["errors"]
    assert reader.get(f"/api/v1/{name}?cursor=nonsense").status_code in (200, 404)
    assert Client().delete(f"/api/v1/{name}").status_code in (401, 405)


def test_an_incident_with_its_evidence_and_reports(full: World, reader: KeyClient) -> None:
    (incident,) = rows(reader, "incidents?xid=79")
    detail = reader.get(f"/api/v1/incidents/{incident['id']}").json()
    assert detail["placement"]["outcome"] == "resolved"
    assert detail["root_event"]["cause"] == "xid:79"
    assert detail["root_event_members"] == [incident["id"]]
    (told,) = detail["reports"]
    assert json.loads(told["body"])["incident_id"] == incident["id"]


def test_filters(full: World, reader: KeyClient) -> None:
    assert len(rows(reader, "incidents?outcome=not_resolved")) == 1
    assert len(rows(reader, "incidents?node=node-17&kind=unplanned")) == 1
    assert rows(reader, "incidents?started_before=2026-11-02T00:00:00Z") == []
    assert len(rows(reader, "incidents?started_from=2026-11-02T00:00:00Z")) == 2
    assert rows(reader, "contract-years?state=closed")[0]["number"] == 1
    assert rows(reader, "statements?verdict=met") == []
    assert len(rows(reader, "credits?state=proposed")) == 1


def test_pages(full: World, reader: KeyClient) -> None:
    first = reader.get("/api/v1/incidents?page_size=1").json()
    second = reader.get(first["next"]).json()
    assert [len(first["results"]), len(second["results"]), second["next"]] == [1, 1, None]
    assert first["results"][0]["id"] != second["results"][0]["id"]


def test_a_year_with_its_report_and_statement(full: World, reader: KeyClient) -> None:
    year = reader.get(f"/api/v1/contract-years/{full.year.pk}").json()
    assert (year["report"]["counted"], year["report"]["resolved"], year["report"]["verdict"]) == (2, 1, "short")
    (statement,) = rows(reader, "statements")
    assert statement["sha256"] == year["report"]["statement"]["sha256"]
    text = reader.get(f"/api/v1/statements/{statement['id']}").json()["canonical"]
    assert json.loads(text)["revision"] == 1


def test_a_credit_says_its_balance(full: World, reader: KeyClient) -> None:
    (credit,) = rows(reader, "credits")
    assert credit["balance"]["available"] == {"minor": 0, "currency": "EUR", "amount": "0.00"}
    assert credit["statement"] == rows(reader, "statements")[0]["id"]


def test_an_id_that_two_contracts_use_must_be_named_with_its_contract(full: World) -> None:
    mine = Incident.objects.filter(contract=full.contract).first()
    assert mine is not None
    with time_machine.travel(datetime.datetime(2026, 11, 2, 9, 10, tzinfo=datetime.UTC), tick=False):
        AgentClient(full.stranger_key_text).reports(report(incident_id=str(mine.public_id), seq=3))
    address = f"/api/v1/incidents/{mine.public_id}"
    assert client_of(full.viewer).get(address).status_code == 200
    manager = client_of(full.account_manager)
    assert manager.get(address).status_code == 409
    assert manager.get(f"{address}?contract={full.contract.pk}").status_code == 200
    assert manager.get(f"{address}?contract=x").status_code == 404


def test_the_export_is_enough_to_recompute_the_year(full: World, reader: KeyClient) -> None:
    response = reader.get(f"/api/v1/contract-years/{full.year.pk}/export")
    assert response.status_code == 200
    assert len(response.json()["incidents"]) == 2
    assert client_of(full.stranger).get(f"/api/v1/contract-years/{full.year.pk}/export").status_code == 404
    assert reader.get(f"/api/v1/contract-years/{uuid.uuid4()}/export").status_code == 404
