"""The analytics by API: the numbers of the pages, for those who may see the year."""

import csv
import io

import pytest
import time_machine
from django.test import Client

from tests.analytics.fleet import MIGRATED_MS, NOW, RESTARTED_MS, build
from tests.api.test_read import client_of
from tests.people import World
from yoco.accounts.models import Scope
from yoco.accounts.services import agent_key_create
from yoco.guarantee.analytics.selectors import TOPICS

pytestmark = pytest.mark.django_db


def test_a_machine_gets_the_figures_of_the_pages(world: World) -> None:
    build(world.contract)
    _, text = agent_key_create(organisation=world.organisation, scope=Scope.READ, name="reader", actor=world.owner)
    path = f"/api/v1/contract-years/{world.year.pk}/analytics"
    with time_machine.travel(NOW, tick=False):
        answer = Client().get(path, headers={"Authorization": f"Bearer {text}"}).json()
        tables = answer["tables"]
        assert sum(row["wasted_measured_gpu_ms"] or 0 for row in tables["terms"]) == RESTARTED_MS
        assert sum(row["wasted_estimated_gpu_ms"] or 0 for row in tables["terms"]) == 4 * MIGRATED_MS
        assert tables["mttf"][0]["mttf_hours"] == 48.0
        assert (answer["currency"], answer["price_per_gpu_hour"]) == ("EUR", "2.5000")
        reader = client_of(world.viewer)
        codes = {"rates": "weekly", "waste": "workloads", "goodput": "runs", "recovery": "recovery"}
        for topic in TOPICS:
            page = f"/contracts/{world.contract.pk}/years/{world.year.pk}/analytics/{topic}/{codes[topic]}.csv"
            told = list(csv.DictReader(io.StringIO(reader.get(page).content.decode())))
            assert told
            assert [list(row) for row in tables[codes[topic]]] == [list(row) for row in told]
            assert len(told) == len(tables[codes[topic]])
        idle = client_of(world.viewer).get(path, {"spare_nodes": 1}).json()["tables"]["benefit"]
        assert {"line": "idle", "gpu_ms": -8 * 240 * 3_600_000, "money": "-4800.00"} in idle
        assert client_of(world.viewer).get(path, {"spare_nodes": "many"}).status_code == 400


def test_an_empty_year_answers_and_a_stranger_gets_404(world: World) -> None:
    path = f"/api/v1/contract-years/{world.year.pk}/analytics"
    with time_machine.travel(NOW, tick=False):
        tables = client_of(world.viewer).get(path).json()["tables"]
        assert tables["weekly"][0]["node_rate"] is None
        assert tables["runs"] == []
        assert client_of(world.stranger).get(path).status_code == 404
        assert Client().get(path).status_code == 401
        agent = Client().get(path, headers={"Authorization": f"Bearer {world.key_text}"})
        assert agent.status_code == 403
