"""Objections and exclusions through the pages of both sides, against the rows and the year's figures."""

import datetime

import pytest
from django.test import Client
from django.urls import reverse

from tests.desk.test_credits import sign_in
from tests.portal.scene import NOW, Scene, accept, report
from tests.portal.test_pages import text_of
from yoco.accounts.models import User
from yoco.guarantee.models import Placement
from yoco.guarantee.selectors import year_report
from yoco.guarantee.services import placements_refresh
from yoco.incidents.models import Decision, Dispute, Exclusion


@pytest.fixture
def incident_url(scene: Scene) -> str:
    return reverse("portal:incident", args=[scene.contract.pk, scene.rolled_back.public_id])


def post(client: Client, person: User, url: str, **fields: str) -> int:
    sign_in(client, person)
    return client.post(url, fields).status_code


def raise_url(scene: Scene) -> str:
    return reverse("portal:dispute", args=[scene.contract.pk, scene.rolled_back.public_id])


def test_a_member_objects_and_an_account_manager_answers(client: Client, scene: Scene, incident_url: str) -> None:
    assert post(client, scene.world.team_mate, raise_url(scene), text="The spare was ours.") == 302
    row = Dispute.objects.get()
    assert (row.text, row.raised_by, row.state) == ("The spare was ours.", scene.world.team_mate, Decision.PENDING)
    assert "The spare was ours." in text_of(client, incident_url)

    sign_in(client, scene.world.account_manager)
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

    sign_in(client, second)
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


def test_who_does_not_give_the_password_again_decides_nothing(client: Client, scene: Scene) -> None:
    client.force_login(scene.world.account_manager)
    fields = {"decision": "propose", "reason": "user_error", "note": "Theirs."}
    assert client.post(exclude_url(scene), fields)["Location"].startswith(reverse("account_reauthenticate"))
    assert not Exclusion.objects.exists()
    assert post(client, scene.world.owner, raise_url(scene), text="Not so.") == 302
    client.force_login(scene.world.account_manager)
    decide = reverse("desk:dispute", args=[Dispute.objects.get().pk])
    asked = client.post(decide, {"decision": "uphold", "note": "Yes."})
    assert asked["Location"].startswith(reverse("account_reauthenticate"))
    assert Dispute.objects.get().state == Decision.PENDING


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


def exclude_url(scene: Scene) -> str:
    return reverse("desk:exclude", args=[scene.contract.pk, scene.rolled_back.public_id])


def test_an_objection_to_a_proposed_exclusion_ends_the_exclusion_and_no_more(
    client: Client, scene: Scene, incident_url: str
) -> None:
    """The incident was resolved; ending its exclusion must not make it a failure that was not."""
    first = scene.world.account_manager
    propose = reverse("desk:exclude", args=[scene.contract.pk, scene.without_loss.public_id])
    fields = {"decision": "propose", "reason": "user_error", "note": "We think that it was yours."}
    assert post(client, first, propose, **fields) == 302
    objecting = reverse("portal:dispute", args=[scene.contract.pk, scene.without_loss.public_id])
    client.force_login(scene.world.owner)
    assert "The exclusion that is proposed Where the incident stands now" in text_of(client, objecting)
    assert client.post(objecting, {"text": "It was not ours."}).status_code == 200  # what it is against is missing
    assert not Dispute.objects.exists()
    assert client.post(objecting, {"text": "It was not ours.", "against": "exclusion"}).status_code == 302
    page = text_of(client, reverse("portal:incident", args=[scene.contract.pk, scene.without_loss.public_id]))
    assert "Upheld, it ends the exclusion, and the evidence alone decides where the incident stands." in page

    decide = reverse("desk:dispute", args=[Dispute.objects.get().pk])
    sign_in(client, first)
    assert "As it stands 12 / 13 Undecided Uphold the objection 12 / 13" in text_of(client, decide)
    done = client.post(decide, {"decision": "uphold", "note": "Agreed."}, follow=True).content.decode()
    assert "Upheld, it ends the exclusion" in done
    assert Exclusion.objects.get().state == Decision.WITHDRAWN
    placement = Placement.objects.get(incident=scene.without_loss)
    assert (placement.outcome, placement.rule) == ("resolved", "without_loss")


def test_an_objection_to_the_placing_beside_a_proposed_exclusion_makes_it_count(client: Client, scene: Scene) -> None:
    propose = reverse("desk:exclude", args=[scene.contract.pk, scene.without_loss.public_id])
    fields = {"decision": "propose", "reason": "user_error", "note": "We think that it was yours."}
    assert post(client, scene.world.account_manager, propose, **fields) == 302
    objecting = reverse("portal:dispute", args=[scene.contract.pk, scene.without_loss.public_id])
    assert post(client, scene.world.owner, objecting, text="We lost a step.", against="placing") == 302
    decide = reverse("desk:dispute", args=[Dispute.objects.get().pk])
    sign_in(client, scene.world.account_manager)
    assert "it makes the incident count as not resolved" in text_of(client, decide)
    assert post(client, scene.world.account_manager, decide, decision="uphold", note="Your log shows it.") == 302
    assert Placement.objects.get(incident=scene.without_loss).rule == "dispute_upheld"
    assert Exclusion.objects.get().state == Decision.WITHDRAWN


def test_the_objection_to_an_incident_outside_the_contract_is_answered_and_changes_no_figure(
    client: Client, scene: Scene
) -> None:
    early = report(scene.closed_year.starts_at - datetime.timedelta(minutes=5))
    accept(scene.contract, [early])
    outside = Placement.objects.get(incident__public_id=early["incident_id"])
    assert outside.rule == "outside_contract"
    url = reverse("portal:dispute", args=[scene.contract.pk, early["incident_id"]])
    client.force_login(scene.world.owner)
    raised = client.post(url, {"text": "Our clock was wrong; it was in the contract."}, follow=True)
    assert "changes no figure, because no guarantee covers that time" in raised.content.decode()
    row = Dispute.objects.get()
    assert (row.against_outcome, row.against_rule) == ("not_counted", "outside_contract")
    sign_in(client, scene.world.account_manager)
    assert "Open disputes 1" in text_of(client, reverse("desk:portfolio"))
    decide = reverse("desk:dispute", args=[row.pk])
    assert "changes no figure" in text_of(client, decide)
    done = client.post(decide, {"decision": "uphold", "note": "The agent's clock ran behind."}, follow=True)
    assert "changes no figure" in done.content.decode()
    assert Dispute.objects.get().state == Decision.ACCEPTED
    outside.refresh_from_db()
    assert outside.rule == "outside_contract"
    # A later start told afterwards would let the reporter move a failure to where it suits: it stays outside.
    corrected = report(
        scene.closed_year.starts_at + datetime.timedelta(minutes=5),
        type="incident.amended",
        incident_id=early["incident_id"],
        sent_at=NOW.isoformat(),
    )
    accept(scene.contract, [corrected])
    outside.refresh_from_db()
    assert (outside.year_id, outside.rule) == (None, "outside_contract")


def test_an_upheld_objection_counts_an_incident_from_before_the_guarantee_began(client: Client, scene: Scene) -> None:
    year = scene.running_year
    year.guaranteed_from = scene.without_loss.started_at + datetime.timedelta(hours=1)
    year.save(update_fields=["guaranteed_from"])
    placements_refresh(incident_ids=[scene.without_loss.pk])
    assert Placement.objects.get(incident=scene.without_loss).rule == "outside_guarantee"
    url = reverse("portal:dispute", args=[scene.contract.pk, scene.without_loss.public_id])
    assert post(client, scene.world.owner, url, text="The guarantee was in force.") == 302
    decide = reverse("desk:dispute", args=[Dispute.objects.get().pk])
    assert post(client, scene.world.account_manager, decide, decision="uphold", note="It was.") == 302
    placement = Placement.objects.get(incident=scene.without_loss)
    assert (placement.outcome, placement.rule, placement.lead) == ("not_resolved", "dispute_upheld", True)


def test_an_objection_to_what_was_excluded_with_its_unit_ends_the_exclusion(client: Client, scene: Scene) -> None:
    """A failure and its retry count once; excluding the failure takes both out, and each can be objected to."""
    first, second = scene.world.account_manager, scene.world.second_account_manager
    start = scene.rolled_back.resumed_at
    assert start is not None
    retry = report(
        start + datetime.timedelta(minutes=5),
        where={"node": scene.rolled_back.node, "rank": scene.rolled_back.rank, "gpu_uuid": "GPU-0001"},
    )
    accept(scene.contract, [retry])
    assert year_report(year=scene.running_year).resolved == 12
    fields = {"decision": "propose", "reason": "user_error", "note": "Their own kill."}
    assert post(client, first, exclude_url(scene), **fields) == 302
    decide = reverse("desk:exclusion", args=[Exclusion.objects.get().pk])
    sign_in(client, second)
    assert "Accept the exclusion 12 / 12" in text_of(client, decide)
    assert post(client, second, decide, decision="accept", note="Seen.") == 302
    report_now = year_report(year=scene.running_year)
    assert (report_now.resolved, report_now.counted, report_now.excluded) == (12, 12, 1)
    page = reverse("portal:incident", args=[scene.contract.pk, retry["incident_id"]])
    client.force_login(scene.world.owner)
    assert "the whole leaves the ratio" in text_of(client, page)

    url = reverse("portal:dispute", args=[scene.contract.pk, retry["incident_id"]])
    assert post(client, scene.world.owner, url, text="It was the node.") == 302
    decide = reverse("desk:dispute", args=[Dispute.objects.get().pk])
    assert post(client, first, decide, decision="uphold", note="Right.") == 302
    assert Exclusion.objects.get().state == Decision.WITHDRAWN
    report_now = year_report(year=scene.running_year)
    assert (report_now.resolved, report_now.counted, report_now.excluded) == (12, 13, 0)
