"""Objections and exclusions through the pages of both sides, against the rows and the year's figures."""

import pytest
from django.test import Client
from django.urls import reverse

from tests.portal.scene import Scene
from tests.portal.test_pages import text_of
from yoco.accounts.models import User
from yoco.guarantee.models import Placement
from yoco.incidents.models import Decision, Dispute, Exclusion


@pytest.fixture
def incident_url(scene: Scene) -> str:
    return reverse("portal:incident", args=[scene.contract.pk, scene.rolled_back.public_id])


def post(client: Client, person: User, url: str, **fields: str) -> int:
    client.force_login(person)
    return client.post(url, fields).status_code


def raise_url(scene: Scene) -> str:
    return reverse("portal:dispute", args=[scene.contract.pk, scene.rolled_back.public_id])


def test_a_member_objects_and_an_account_manager_answers(client: Client, scene: Scene, incident_url: str) -> None:
    assert post(client, scene.world.team_mate, raise_url(scene), text="The spare was ours.") == 302
    row = Dispute.objects.get()
    assert (row.text, row.raised_by, row.state) == ("The spare was ours.", scene.world.team_mate, Decision.PENDING)
    assert "The spare was ours." in text_of(client, incident_url)

    client.force_login(scene.world.account_manager)
    assert "Open disputes 1" in text_of(client, reverse("desk:portfolio"))
    decide = reverse("desk:dispute", args=[row.pk])
    assert "As it stands 12 / 13" in text_of(client, decide)
    answer = {"decision": "reject", "note": "The node is on our list."}
    assert post(client, scene.world.account_manager, decide, **answer) == 302
    assert Dispute.objects.get().state == Decision.REJECTED

    client.force_login(scene.world.viewer)
    assert "The node is on our list." in text_of(client, incident_url)


def test_a_second_objection_waits_for_the_first(client: Client, scene: Scene) -> None:
    assert post(client, scene.world.owner, raise_url(scene), text="First.") == 302
    client.force_login(scene.world.team_mate)
    again = client.post(raise_url(scene), {"text": "Second."})
    assert "waits for its decision" in again.content.decode()
    assert Dispute.objects.count() == 1


def test_viewers_cannot_object_and_strangers_find_nothing(client: Client, scene: Scene, incident_url: str) -> None:
    assert post(client, scene.world.viewer, raise_url(scene), text="No.") == 403
    assert post(client, scene.world.stranger, raise_url(scene), text="No.") == 404
    assert not Dispute.objects.exists()
    client.force_login(scene.world.viewer)
    assert "Object to this placing" not in text_of(client, incident_url)
    client.force_login(scene.world.owner)
    assert "Object to this placing" in text_of(client, incident_url)


def test_an_objection_can_be_withdrawn_once(client: Client, scene: Scene) -> None:
    url = reverse("portal:dispute_withdraw", args=[scene.contract.pk, scene.rolled_back.public_id])
    assert post(client, scene.world.owner, raise_url(scene), text="Hasty.") == 302
    assert [post(client, scene.world.owner, url) for _ in range(2)] == [302, 404]
    assert Dispute.objects.get().state == Decision.WITHDRAWN


def test_two_account_managers_exclude_an_incident_and_see_what_it_does(
    client: Client, scene: Scene, incident_url: str
) -> None:
    first, second = scene.world.account_manager, scene.world.second_account_manager
    propose = reverse("desk:exclude", args=[scene.contract.pk, scene.rolled_back.public_id])
    fields = {"decision": "propose", "reason": "user_error", "note": "The job was killed by its owner."}
    assert post(client, first, propose, **fields) == 302
    row = Exclusion.objects.get()
    assert row.state == Decision.PENDING
    assert Placement.objects.get(incident=scene.rolled_back).outcome == "not_resolved"

    decide = reverse("desk:exclusion", args=[row.pk])
    assert "Whoever proposed an exclusion cannot decide it" in text_of(client, decide)
    assert post(client, first, decide, decision="accept", note="Mine.") == 409

    client.force_login(second)
    preview = text_of(client, decide)
    assert "As it stands 12 / 13 Undecided Accept the exclusion 12 / 12" in preview
    assert Exclusion.objects.get().state == Decision.PENDING  # the preview was taken back
    assert Placement.objects.get(incident=scene.rolled_back).outcome == "not_resolved"
    assert post(client, second, decide, decision="accept", note="Confirmed with the customer.") == 302
    assert Placement.objects.get(incident=scene.rolled_back).outcome == "excluded"

    client.force_login(scene.world.owner)
    page = text_of(client, incident_url)
    assert "Excluded: user error." in page
    assert "Confirmed with the customer." in page

    withdraw = reverse("desk:exclusion_withdraw", args=[row.pk])
    assert post(client, first, withdraw, decision="withdraw", note="It was a mistake.") == 302
    assert Placement.objects.get(incident=scene.rolled_back).outcome == "not_resolved"


def test_a_ground_outside_the_terms_is_refused(client: Client, scene: Scene) -> None:
    url = reverse("desk:exclude", args=[scene.contract.pk, scene.rolled_back.public_id])
    fields = {"decision": "propose", "reason": "weather", "note": "It rained."}
    assert post(client, scene.world.account_manager, url, **fields) == 200
    assert not Exclusion.objects.exists()


def test_customers_decide_nothing(client: Client, scene: Scene) -> None:
    assert post(client, scene.world.owner, raise_url(scene), text="Ours.") == 302
    decide = reverse("desk:dispute", args=[Dispute.objects.get().pk])
    assert post(client, scene.world.owner, decide, decision="uphold", note="Yes.") == 404
    assert Dispute.objects.get().state == Decision.PENDING
