"""POST /api/v1/heartbeats: the sign of life, and which numbers never arrived."""

import uuid

from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from tests.ingest.conftest import AgentClient
from tests.ingest.reports import BOOT, heartbeat, report
from tests.people import World
from tests.portal.test_pages import text_of
from yoco.incidents.models import AgentBoot, Run


def test_it_works(agent: AgentClient, world: World) -> None:
    workload = report()["workload"]
    assert agent.missing(heartbeat(seq=0, workload=workload)) == []
    boot = AgentBoot.objects.get()
    assert (boot.contract, str(boot.boot_id), boot.run_id, boot.last_step) == (
        world.contract,
        BOOT,
        "pretraining-7",
        1200,
    )
    assert Run.objects.get().gpus == 2048


def test_it_asks_for_what_never_arrived(agent: AgentClient) -> None:
    agent.reports(*(report(seq=seq) for seq in (2, 3, 6, 9)))
    assert agent.missing(heartbeat(seq=12)) == [[1, 1], [4, 5], [7, 8], [10, 12]]
    agent.reports(*(report(seq=seq) for seq in (1, 4, 5, 7, 8, 10, 11, 12)))
    assert agent.missing(heartbeat(seq=12)) == []


def test_an_invalid_report_stays_missing(agent: AgentClient) -> None:
    agent.reports(report(seq=1, kind="sabotage"))
    assert agent.missing(heartbeat(seq=1)) == [[1, 1]]


def test_boots_and_agents_count_apart(agent: AgentClient) -> None:
    agent.reports(report(seq=1), report(seq=1, boot_id=str(uuid.uuid4())), report(seq=1, agent_id="other"))
    assert agent.missing(heartbeat(seq=2)) == [[2, 2]]
    assert AgentBoot.objects.count() == 3


def test_the_highest_number_never_goes_back(agent: AgentClient) -> None:
    agent.missing(heartbeat(seq=3))
    assert agent.missing(heartbeat(seq=1)) == [[1, 3]]


def test_a_run_ends(agent: AgentClient) -> None:
    agent.missing(heartbeat(run_ended=True))
    assert AgentBoot.objects.get().run_ended_at is not None


def test_it_rejects_what_it_cannot_read(agent: AgentClient) -> None:
    response = agent.post("heartbeats", heartbeat(seq=-1))
    assert response.status_code == 422
    assert response["Content-Type"] == "application/problem+json"
    assert list(response.json()["errors"]) == ["$.seq"]
    assert agent.post("heartbeats", [heartbeat()]).status_code == 422
    assert agent.post("heartbeats", heartbeat(at="2026-11-02T10:00:00Z")).status_code == 422


def test_the_customer_sees_how_fresh_the_figures_are(agent: AgentClient, world: World, client: Client) -> None:
    client.force_login(world.owner)
    url = reverse("portal:year", args=[world.contract.pk, world.year.pk])
    assert "never: connect a training job" in text_of(client, url)
    agent.missing(heartbeat(seq=3))
    call_command("tick")  # it sees the numbers that are missing
    page = text_of(client, url)
    assert "Jobs heard now 1" in page
    assert "Jobs with reports still asked for 1" in page
