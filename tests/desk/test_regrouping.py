"""One event, one incident: merged, split and left to the rules at the desk, and what the customer sees of it."""

import datetime
import re
import uuid

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from tests.desk.test_credits import sign_in
from tests.portal.scene import Scene, accept, report
from tests.portal.test_pages import QUERIES_PER_PAGE, text_of
from yoco.core.models import AuditEntry
from yoco.guarantee.tally import year_rules, years_tally
from yoco.incidents.models import Incident, Regrouping, RegroupingProposal

REASON = "One power feed failed under both."


@pytest.fixture
def neighbour(scene: Scene) -> Incident:
    """Another node of another workload, ten minutes after `without_loss`: by the rules an event of its own."""
    body = report(
        scene.without_loss.started_at + datetime.timedelta(minutes=10),
        where={"node": "node-900", "rank": 900},
        agent_id="agent-900",
    )
    accept(scene.contract, [body])
    return Incident.objects.get(public_id=uuid.UUID(body["incident_id"]))


@pytest.fixture
def desk(client: Client, scene: Scene) -> Client:
    sign_in(client, scene.world.account_manager)
    return client


def url(step: str, incident: Incident) -> str:
    return reverse(f"desk:{step}", args=[incident.contract_id, incident.public_id])


def page_of(client: Client, incident: Incident) -> str:
    return text_of(client, reverse("portal:incident", args=[incident.contract_id, incident.public_id]))


def counted(scene: Scene) -> int:
    rules, _ = year_rules(scene.running_year)
    assert rules.terms is not None
    return years_tally(years=[scene.running_year])[scene.running_year.pk].n(rules.terms)


def merge(client: Client, scene: Scene, *events: Incident, decision: str = "merge", note: str = REASON) -> int:
    fields = {"events": [str(one.root_event_id) for one in events], "note": note, "decision": decision}
    return client.post(url("merge", scene.without_loss), fields).status_code


def test_two_incidents_become_one_event_and_count_once(desk: Client, scene: Scene, neighbour: Incident) -> None:
    before = counted(scene)
    assert "node-900 · xid:79 · 1 report" in text_of(desk, url("merge", scene.without_loss))
    fields = {"events": [str(neighbour.root_event_id)], "note": REASON, "decision": "preview"}
    page = desk.post(url("merge", scene.without_loss), fields).content.decode()
    assert re.search(rf'Merge</th><td class="num">\d+ / {before - 1}</td>', page)
    assert not Regrouping.objects.exists()

    assert merge(desk, scene, neighbour) == 302
    assert counted(scene) == before - 1
    rows = Regrouping.objects.all()
    assert {(row.incident_id, row.reason, row.by) for row in rows} == {
        (pk, REASON, scene.world.account_manager) for pk in (scene.without_loss.pk, neighbour.pk)
    }
    assert AuditEntry.objects.filter(action="incidents.merged").count() == 2


def test_the_customer_sees_the_other_reports_and_the_reason(desk: Client, scene: Scene, neighbour: Incident) -> None:
    desk.force_login(scene.world.owner)
    assert "One event" not in page_of(desk, scene.without_loss)
    sign_in(desk, scene.world.account_manager)
    merge(desk, scene, neighbour)
    desk.force_login(scene.world.owner)
    for incident in (scene.without_loss, neighbour):
        page = page_of(desk, incident)
        assert "1 of 2 reports of one event." in page
        assert REASON in page
        assert "Merge with other incidents" not in page
    assert "1 de 2 informes de un mismo suceso." in text_of(
        desk, reverse("portal:incident", args=[scene.contract.pk, neighbour.public_id]), "es"
    )


def test_merging_takes_the_whole_of_an_event_along(desk: Client, scene: Scene, neighbour: Incident) -> None:
    # A second report from the neighbour's node at the same moment: the rules make it one event with the neighbour.
    accept(
        scene.contract,
        [report(neighbour.started_at, where={"node": "node-900", "rank": 901}, agent_id="agent-901")],
    )
    assert merge(desk, scene, neighbour) == 302
    scene.without_loss.refresh_from_db()
    assert Incident.objects.filter(root_event=scene.without_loss.root_event_id).count() == 3


def test_a_split_and_its_reversal(desk: Client, scene: Scene, neighbour: Incident) -> None:
    before = counted(scene)
    merge(desk, scene, neighbour)
    assert "Split from its root event" in page_of(desk, neighbour)
    assert desk.post(url("split", neighbour), {"decision": "split", "note": "Another feed."}).status_code == 302
    assert counted(scene) == before - 1  # Two resolved instead of one: it waits.
    decide(desk, scene, "accept")
    assert counted(scene) == before
    sign_in(desk, scene.world.account_manager)
    for incident in (neighbour, scene.without_loss):
        answer = desk.post(url("revert", incident), {"decision": "revert", "note": "The rules were right."})
        assert answer.status_code == 302
    assert not Incident.objects.exclude(moved_to=None).exists()
    assert counted(scene) == before
    page = page_of(desk, neighbour)
    assert "Left to the rules again" in page
    assert "Let the rules group it again" not in page


def decide(client: Client, scene: Scene, decision: str) -> None:
    """The second account manager decides the proposal that waits."""
    sign_in(client, scene.world.second_account_manager)
    address = reverse("desk:regrouping", args=[RegroupingProposal.objects.get(state="pending").pk])
    assert client.post(address, {"decision": decision, "note": "Looked at it."}).status_code == 302


def test_failures_become_one_only_with_a_second_person(desk: Client, scene: Scene) -> None:
    body = report(
        scene.rolled_back.started_at + datetime.timedelta(minutes=40),
        where={"node": "node-901", "rank": 901},
        agent_id="agent-901",
        resolution="abandoned",
    )
    accept(scene.contract, [body])
    other = Incident.objects.get(public_id=uuid.UUID(body["incident_id"]))
    before = counted(scene)
    fields = {"events": [str(other.root_event_id)], "note": REASON, "decision": "merge"}
    answer = desk.post(url("merge", scene.rolled_back), fields, follow=True)
    assert "It waits for a second person." in answer.content.decode()
    assert counted(scene) == before
    proposal = RegroupingProposal.objects.get()
    address = reverse("desk:regrouping", args=[proposal.pk])

    # Its proposer can only take it back; the customer sees it at once, and no button.
    assert "Take it back" in text_of(desk, address)
    assert "Accept the regrouping" not in text_of(desk, address)
    assert desk.post(address, {"decision": "accept", "note": "Mine."}).status_code == 200
    desk.force_login(scene.world.owner)
    page = page_of(desk, other)
    assert REASON in page
    assert "Regroupings that need two people" in page
    assert "Decide" not in page

    # Without the password given again nobody decides.
    desk.force_login(scene.world.second_account_manager)
    assert desk.post(address, {"decision": "accept", "note": "So it was."}).status_code == 302
    assert counted(scene) == before
    sign_in(desk, scene.world.second_account_manager)
    assert "Regroupings to decide 1" in text_of(desk, reverse("desk:portfolio"))
    assert f"{before - 1}" in text_of(desk, address)
    decide(desk, scene, "accept")
    assert counted(scene) == before - 1
    assert str(scene.world.second_account_manager) in page_of(desk, other)


def test_it_refuses_without_a_choice_a_reason_or_a_move(desk: Client, scene: Scene, neighbour: Incident) -> None:
    assert merge(desk, scene) == 200
    assert merge(desk, scene, neighbour, note=" ") == 200
    assert merge(desk, scene, scene.rolled_back) == 200  # weeks away: not offered
    assert desk.post(url("split", neighbour), {"decision": "split", "note": ""}).status_code == 200
    assert desk.post(url("revert", neighbour), {"decision": "revert", "note": "x"}).status_code == 409
    assert "Nobody has moved this incident" in text_of(desk, url("revert", neighbour))
    assert not Regrouping.objects.exists()


def test_customers_regroup_nothing(client: Client, scene: Scene, neighbour: Incident) -> None:
    for person in (scene.world.owner, scene.world.stranger):
        sign_in(client, person)
        assert merge(client, scene, neighbour) == 404
        for step in ("split", "revert"):
            assert client.post(url(step, neighbour), {"decision": step, "note": "Mine."}).status_code == 404
    assert not Regrouping.objects.exists()


def test_the_pages_take_few_queries(
    desk: Client, scene: Scene, neighbour: Incident, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    merge(desk, scene, neighbour)
    incident = reverse("portal:incident", args=[scene.contract.pk, neighbour.public_id])
    for address in (incident, url("merge", neighbour)):
        with django_assert_max_num_queries(QUERIES_PER_PAGE):
            assert desk.get(address).status_code == 200
