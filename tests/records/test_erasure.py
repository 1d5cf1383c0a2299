"""Erasing a person: no row says who they were any more, and everything that rests on what they did still holds."""

from io import StringIO
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount, SocialToken
from allauth.usersessions.models import UserSession
from django.apps import apps
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django.utils import translation

from tests.accounts.test_second_factor import app_set_up
from tests.people import PASSWORD, World, user
from tests.portal.scene import Scene, issue_and_approve
from yoco.accounts.invitations import invitation_create, invitation_take
from yoco.accounts.models import AgentKey, Invitation, Membership, Role, Scope, User
from yoco.accounts.services import agent_key_create, member_add, reader_update
from yoco.core.models import AuditEntry
from yoco.guarantee.models import Statement
from yoco.guarantee.reviews import dispute_raise
from yoco.guarantee.verify import statements_verify
from yoco.incidents.models import Comment, Dispute
from yoco.incidents.review import comment_write
from yoco.notify.fan_out import events_fan_out
from yoco.notify.models import MailDelivery, MailPreference
from yoco.notify.preferences import mail_preference_set
from yoco.records.erasure import WORDS

REASON = "Request of 3 November."


def erase(person: str, *options: str, reason: str = REASON) -> str:
    out = StringIO()
    call_command("person_erase", person, "--reason", reason, *options, stdout=out)
    return out.getvalue()


def everything() -> str:
    """Every value of every row of the database, sessions decoded."""
    rows: list[Any] = [list(model._base_manager.values()) for model in apps.get_models(include_auto_created=True)]
    return str([rows, [session.get_decoded() for session in Session.objects.all()]]).lower()


@pytest.fixture
def olivia(client: Client, scene: Scene) -> User:
    """An owner who has left traces wherever a person can, beside a second owner."""
    world, person = scene.world, scene.world.owner
    issue_and_approve(scene)
    member_add(organisation=world.organisation, user=user("second@example.com"), role=Role.OWNER, actor=None)
    reader_update(user=person, name="Olivia Ortiz", language="es")
    app_set_up(client, person)
    client.get(reverse("portal:home"))
    account = SocialAccount.objects.create(user=person, provider="acme", uid="olivia", extra_data={"name": "Olivia"})
    SocialToken.objects.create(account=account, token="of olivia")
    EmailAddress.objects.create(user=person, email="olivia.private@example.com")
    invitation = invitation_create(
        organisation=world.organisation,
        email="Olivia.Private@example.com",
        role=Role.VIEWER,
        actor=world.owner,
    )
    invitation_take(invitation=invitation, user=User(pk=person.pk, email=invitation.email))
    invitation_create(organisation=world.organisation, email="new@example.com", role=Role.VIEWER, actor=person)
    mail_preference_set(membership=person.memberships.get(), muted=[], digest="weekly", actor=person)
    comment_write(incident=scene.rolled_back, text="The rack had no power.", actor=person)
    dispute_raise(incident=scene.without_loss, text="It was ours.", actor=person)
    agent_key_create(organisation=world.organisation, scope=Scope.READ, name="dashboard", actor=person)
    events_fan_out()
    MailDelivery.objects.filter(membership__user=person).update(error="550 olivia@example.com: no such user")
    return person


def test_nothing_says_who_it_was_and_all_that_was_done_still_holds(client: Client, scene: Scene, olivia: User) -> None:
    before = list(Statement.objects.values_list("pk", "sha256", "canonical"))
    deeds = AuditEntry.objects.filter(actor=olivia).count()
    assert "olivia" in everything()
    assert "ortiz" in everything()

    said = erase("Olivia@example.com")

    assert "olivia" not in everything()
    assert "ortiz" not in everything()
    assert "erased person 1" in said
    assert "dashboard" in said  # her key goes on working, and the operator is told
    # What was done is there, by the same id.
    assert list(Statement.objects.values_list("pk", "sha256", "canonical")) == before
    assert statements_verify() == []
    call_command("ledger_verify", stdout=StringIO())
    assert AuditEntry.objects.filter(actor=olivia).count() == deeds
    assert Comment.objects.get().by_id == Dispute.objects.get().raised_by_id == olivia.pk
    with translation.override("en"):  # her last page was Spanish
        assert str(AgentKey.objects.get(name="dashboard").created_by) == "erased person 1"
    entry = AuditEntry.objects.get(action="person.erased")
    assert entry.subject_id == str(olivia.pk)
    assert entry.data["reason"] == REASON
    assert AuditEntry.objects.get(action="member.revoked").organisation_id == scene.world.organisation.pk
    assert not Invitation.objects.filter(invited_by=olivia, accepted_at=None, revoked_at=None).exists()
    # She is signed out everywhere and cannot come back.
    assert client.get(reverse("portal:settings")).status_code == 302
    for address in ("olivia@example.com", "erased-1@erased.invalid"):
        assert Client().post(reverse("account_login"), {"login": address, "password": PASSWORD}).status_code == 200
    # Others read her deeds under the number.
    client.force_login(scene.world.viewer)
    page = client.get(reverse("portal:incident", args=[scene.contract.pk, scene.rolled_back.public_id]))
    assert "erased person 1" in page.content.decode()

    assert "Nothing" in erase("olivia@example.com")
    assert "Nothing" in erase(str(olivia.pk))
    assert AuditEntry.objects.filter(action="person.erased").count() == 1


def test_a_dry_run_says_the_same_and_changes_nothing(scene: Scene, olivia: User) -> None:
    before = everything()
    said = erase("olivia@example.com", "--dry-run")
    assert everything() == before
    assert erase("olivia@example.com").replace(" is ", " would be ") == said


def test_the_people_who_signed_for_money_can_be_erased(scene: Scene) -> None:
    issue_and_approve(scene)
    erase(scene.world.account_manager.email)
    call_command("ledger_verify", stdout=StringIO())
    assert "amanda" not in everything()
    with pytest.raises(CommandError, match="createsuperuser"):
        erase(scene.world.second_account_manager.email)
    assert User.objects.get(pk=scene.world.account_manager.pk).is_account_manager is False


def test_the_only_owner_stays_until_there_is_another(world: World) -> None:
    with pytest.raises(CommandError, match="only owner of Acme"):
        erase(world.owner.email)
    assert User.objects.get(pk=world.owner.pk).is_active
    erase(world.owner.email, "--leave-without-owner")
    assert not Membership.objects.filter(organisation=world.organisation, role=Role.OWNER, revoked_at=None).exists()
    # Each has a number of their own.
    assert "erased person 2" in erase(world.viewer.email)


@pytest.mark.parametrize("reason", [" ", "Olivia asked for it", "mail from OLIVIA@example.com"])
def test_a_reason_is_kept_so_it_must_not_name_anybody(world: World, reason: str) -> None:
    with pytest.raises(CommandError, match="reason"):
        erase(world.owner.email, "--leave-without-owner", reason=reason)


def test_words_that_mention_the_person_are_pointed_out_and_left(scene: Scene) -> None:
    comment = comment_write(incident=scene.rolled_back, text="Ask boris@YOCO.example.", actor=scene.world.owner)
    said = erase("boris@yoco.example")
    assert f"1 rows of incidents_comment still mention them: {comment.pk}" in said


def test_an_invitation_to_somebody_without_an_account_is_erased(world: World) -> None:
    invitation_create(organisation=world.organisation, email="nora@example.com", role=Role.VIEWER, actor=world.owner)
    assert "1  invitations" in erase("nora@example.com")
    assert "nora" not in everything()
    assert "Nothing" in erase("nora@example.com")
    assert AuditEntry.objects.get(action="invitation.erased").organisation_id == world.organisation.pk


def test_every_table_that_knows_people_is_thought_of() -> None:
    """A new table with a person in it fails here until erasure has been decided for it."""
    erased = {EmailAddress, Authenticator, SocialAccount, UserSession, MailDelivery, MailPreference}
    emptied = {User.groups.through, User.user_permissions.through}
    by_id_alone = {
        "accounts.AgentKey", "accounts.Invitation", "accounts.Membership", "contracts.GuaranteeTerms",
        "core.AuditEntry", "credits.Credit", "credits.LedgerTransaction", "guarantee.ImportFile",
        "guarantee.StatementShare", "guarantee.Proposal", "incidents.Comment", "incidents.Dispute",
        "incidents.Exclusion", "incidents.Regrouping", "incidents.RegroupingProposal", "notify.Endpoint",
    }  # fmt: skip
    for model in apps.get_models(include_auto_created=True):
        if any(field.is_relation and field.related_model is User for field in model._meta.fields):
            assert model in erased | emptied or model._meta.label in by_id_alone, model
    for model, names in WORDS:
        for name in names:
            model._meta.get_field(name)
