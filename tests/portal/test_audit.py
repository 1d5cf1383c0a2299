"""The audit log: who sees which entries, what they say, how they are filtered, paged and saved."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.db import connection
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from tests.people import PASSWORD, World, user
from tests.portal.scene import NOW, Scene, issue_and_approve
from tests.portal.test_pages import QUERIES_PER_PAGE, text_of
from yoco.accounts.invitations import invitation_create
from yoco.accounts.models import Membership, Role
from yoco.accounts.services import member_add, member_revoke, member_role_set
from yoco.accounts.sessions import sessions_end
from yoco.core.audit import audit_record
from yoco.core.models import AuditEntry
from yoco.guarantee.models import ProposalKind
from yoco.guarantee.reviews import dispute_raise, exclusion_propose
from yoco.portal.audit.words import KINDS, SENTENCE

SOURCE = Path(__file__).parents[2] / "yoco"
# Codes that are put together: what the last part can be.
STATES = ("accepted", "rejected", "withdrawn")


@pytest.fixture
def owner(client: Client, scene: Scene) -> Client:
    client.force_login(scene.world.owner)
    return client


def log_url(scene: Scene, **query: Any) -> str:
    return reverse("portal:audit", args=[scene.world.organisation.pk], query=query)


def rows_of(client: Client, url: str) -> list[dict[str, str]]:
    response = client.get(url)
    assert response.status_code == 200
    return list(csv.DictReader(io.StringIO(response.getvalue().decode())))


def test_every_action_in_the_source_has_a_sentence() -> None:
    written = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    calls = re.findall(r'\b(?:audit_record|_record|_audit|tell)\(\s*(?:action=)?f?"([a-z_]+\.[a-z_{}]+)"', written)
    calls += re.findall(r'(?:RegroupingAction\.\w+: |if restated else |action=)"([a-z_]+\.[a-z_]+)"', written)
    codes = {code.replace("{state}", state) for code in calls for state in STATES}
    codes |= {f"{kind}.{state}" for kind in ProposalKind.values for state in ("proposed", *STATES)}
    asked_of_the_ledger = {"credit.issue", "credit.approve", "credit.reverse", "credit.settle", "credit.apply"}
    assert len(codes) > 60
    assert codes - asked_of_the_ledger - SENTENCE.keys() == set()


def test_an_organisation_reads_what_happened_in_words(owner: Client, scene: Scene) -> None:
    world = scene.world
    issue_and_approve(scene)
    exclusion_propose(
        incident=scene.rolled_back, reason="user_error", note="Killed by its owner.", actor=world.account_manager
    )
    mate = Membership.objects.get(user=world.team_mate)
    member_role_set(membership=mate, role=Role.ADMIN, actor=world.owner)
    member_revoke(membership=mate, actor=world.owner)
    invitation_create(organisation=world.organisation, email="nina@example.com", role=Role.VIEWER, actor=world.owner)
    page = text_of(owner, log_url(scene))
    for said in (
        "Amanda The credit was issued. ACME-7 · Year 1 Reason: The statement was checked.",
        "Boris The credit was approved. ACME-7 · Year 1",
        "The service The amount of the credit was fixed: US$1,200,000.00.",
        "Amanda An exclusion was proposed. ACME-7 · llm-7b pre-training Reason: User error: Killed by its owner.",
        "Olivia The role of Martin was changed from Member to Administrator.",
        "Olivia The membership of Martin (Administrator) was ended.",
        "Olivia nina@example.com was invited with the role Viewer.",
        "Amanda Order R-2027 of US$4,800,000.00 was recorded. ACME-7",
        "Amanda Contract ACME-7 was recorded. ACME-7",
        "The service The year was closed. ACME-7 · Year 1",
        "The database refuses to change or remove an entry",
    ):
        assert said in page
    assert "Recorded as" not in page
    for href in set(
        re.findall(r'<td class="break">.*?<a href="([^"]+)"', owner.get(log_url(scene)).content.decode(), re.S)
    ):
        assert owner.get(href).status_code == 200, href
    spanish = text_of(owner, log_url(scene), "es")
    assert "Olivia Se cambió el rol de Martin de Miembro a Administrador." in spanish


def test_nothing_of_another_organisation_is_seen(client: Client, scene: Scene) -> None:
    world = scene.world
    both = user("both@example.com")
    # While a person is a member, the organisation sees how that person signs in, and never who else does.
    audit_record(action="sign_in.password_set", actor=both, subject=both)
    with time_machine.travel(NOW.replace(hour=11)):
        membership = member_add(organisation=world.organisation, user=both, role=Role.VIEWER, actor=world.owner)
        member_add(organisation=world.stranger_contract.organisation, user=both, role=Role.OWNER, actor=world.stranger)
    with time_machine.travel(NOW.replace(hour=12)):
        audit_record(action="sign_in.totp_activated", actor=both, subject=both)
        audit_record(action="sign_in.account_connected", actor=both, subject=both)
        audit_record(action="reader.updated", actor=both, subject=both, data={"language": "es"})
        audit_record(action="sign_in.password_changed", actor=world.stranger, subject=world.stranger)
        sessions_end(user=both, rows=[])
    with time_machine.travel(NOW.replace(hour=13)):
        member_revoke(membership=membership, actor=world.owner)
    with time_machine.travel(NOW.replace(hour=14)):
        audit_record(action="sign_in.webauthn_added", actor=both, subject=both)
        client.force_login(world.owner)
        found = rows_of(client, reverse("portal:audit_csv", args=[world.organisation.pk]))
        assert {row["action"] for row in found if row["who"] == "Both"} == {"sign_in.totp_activated", "sessions.ended"}
        of_others = AuditEntry.objects.filter(organisation_id=world.stranger_contract.organisation_id)
        assert of_others.exists()
        assert not {row["id"] for row in found} & {str(entry.pk) for entry in of_others}
        assert "stranger" not in text_of(client, log_url(scene)).lower()
        client.force_login(world.account_manager)
        everything = rows_of(client, reverse("portal:audit_all_csv"))
        assert len(everything) == AuditEntry.objects.count()
        url = reverse("portal:audit_all_csv", query={"organisation": world.organisation.pk})
        assert [row["id"] for row in rows_of(client, url)] == [row["id"] for row in found]


def test_filters_leave_what_they_name(owner: Client, scene: Scene) -> None:
    def actions(**query: Any) -> set[str]:
        url = reverse("portal:audit_csv", args=[scene.world.organisation.pk], query=query)
        return {row["action"] for row in rows_of(owner, url)}

    issue_and_approve(scene)
    assert actions(kind="credits", person="vendor") == {"credit.issued", "credit.approved"}
    assert actions(person=str(scene.world.account_manager.pk), kind="credits") == {"credit.issued"}
    assert "credit.proposed" in actions(person="system")
    assert actions(person="system") & {"order.recorded", "credit.issued"} == set()
    assert actions(since="2027-11-21") == set()
    assert actions(until="2027-11-19") == set()
    assert "order.recorded" in actions(since="2027-11-20", until="2027-11-20")
    assert actions(kind="nonsense", since="yesterday", person="nobody") == actions()
    assert set().union(*(actions(kind=kind) for kind, _name in KINDS)) == actions()
    empty = text_of(owner, log_url(scene, since="2027-11-21"))
    assert "No entry matches this filter" in empty
    # The reader's day: at 10:30 UTC it is the 21st on Kiritimati already.
    type(scene.world.owner).objects.filter(pk=scene.world.owner.pk).update(time_zone="Pacific/Kiritimati")
    assert "order.recorded" in actions(since="2027-11-21")


def test_pages_follow_each_other_without_gap_or_repetition(owner: Client, scene: Scene) -> None:
    person = scene.world.owner
    for number in range(120):  # several at one time, between entries of the organisation
        with time_machine.travel(NOW.replace(minute=31 + number // 10), tick=False):
            organisation = scene.world.organisation.pk if number % 3 else None
            audit_record(
                action="key.created" if organisation else "sign_in.totp_activated",
                actor=person,
                subject=scene.world.key if organisation else person,
                organisation_id=organisation,
                data={"name": f"n{number}"},
            )
    whole = [row["id"] for row in rows_of(owner, reverse("portal:audit_csv", args=[scene.world.organisation.pk]))]
    found: list[str] = []
    context = owner.get(log_url(scene)).context
    while True:
        found += [str(entry.pk) for entry in context["page"].rows]
        if not context["page"].older_than:
            break
        context = owner.get(log_url(scene, older_than=context["page"].older_than)).context
    assert found == whole
    assert len(found) > 130
    before = owner.get(log_url(scene, newer_than=context["page"].newer_than)).context["page"]
    last = len(context["page"].rows)
    assert [str(entry.pk) for entry in before.rows] == whole[-last - 50 : -last]
    assert owner.get(log_url(scene, older_than="2027_no-place")).status_code == 200


def test_the_log_takes_few_queries_and_an_index(
    client: Client, scene: Scene, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    world = scene.world
    issue_and_approve(scene)
    dispute_raise(incident=scene.rolled_back, text="Not so.", actor=world.owner)
    invitation_create(organisation=world.organisation, email="nina@example.com", role=Role.VIEWER, actor=world.owner)
    client.force_login(world.owner)
    with django_assert_max_num_queries(QUERIES_PER_PAGE):
        client.get(log_url(scene))
    client.force_login(world.account_manager)
    for query in ({}, {"organisation": world.organisation.pk}):
        with django_assert_max_num_queries(QUERIES_PER_PAGE):
            client.get(reverse("portal:audit_all", query=query))
    plan = AuditEntry.objects.filter(organisation_id=world.organisation.pk).order_by("-at", "-id")[:50].explain()
    if connection.vendor == "sqlite":
        assert "audit_by_organisation" in plan
        assert "TEMP B-TREE" not in plan


def test_what_changes_a_sign_in_stands_in_the_log_of_its_organisation(owner: Client, scene: Scene) -> None:
    url = reverse("account_change_password")
    new = "another battery staple horse"
    owner.post(url, {"oldpassword": PASSWORD, "password1": new, "password2": new})
    assert "Olivia The password was changed." in text_of(owner, log_url(scene, kind="sign_in"))


def test_a_member_is_sent_away(client: Client, world: World) -> None:
    client.force_login(world.team_mate)
    assert client.get(reverse("portal:audit", args=[world.organisation.pk])).status_code == 403
    assert "Open the audit log" not in text_of(client, reverse("portal:organisation", args=[world.organisation.pk]))
    client.force_login(world.owner)
    assert "Open the audit log" in text_of(client, reverse("portal:organisation", args=[world.organisation.pk]))
