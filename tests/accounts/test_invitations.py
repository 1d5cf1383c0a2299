"""Invitations through their pages and e-mails: who may invite, what the link opens, and when it opens nothing."""

import datetime
import re

import pytest
import time_machine
from django.core import mail
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from tests.people import PASSWORD, World, sign_in_confirmed, user
from yoco.accounts.models import Invitation, Membership, Role, User
from yoco.accounts.services import member_add, member_revoke, organisation_create
from yoco.core.models import AuditEntry

NEW_PASSWORD = "a long and quite uncommon phrase"


@pytest.fixture
def invite(client: Client, world: World, django_capture_on_commit_callbacks):
    """Invites as the owner of Acme and answers with the link of the e-mail, empty if none went out."""

    def send(email: str = "nina@example.com", role: str = "member", actor: User | None = None) -> str:
        sign_in_confirmed(client, actor or world.owner)
        sent = len(mail.outbox)
        with django_capture_on_commit_callbacks(execute=True):
            client.post(reverse("portal:invite", args=[world.organisation.pk]), {"email": email, "role": role})
        client.logout()
        if len(mail.outbox) == sent:
            return ""
        assert mail.outbox[-1].to == [email.lower()]
        found = re.search(r"http://127\.0\.0\.1:8000(/invitations/\S+)", mail.outbox[-1].body)
        assert found is not None
        return found[1]

    return send


def role_of(world: World, email: str) -> str | None:
    rows = Membership.objects.filter(organisation=world.organisation, user__email=email, revoked_at=None)
    return rows.values_list("role", flat=True).first()


def join(client: Client, link: str) -> int:
    return client.post(link, {"name": "Nina", "password": NEW_PASSWORD}).status_code


def test_a_new_person_makes_an_account_and_is_a_member(client: Client, world: World, invite) -> None:
    link = invite("Nina@Example.com", "admin")
    page = client.get(link)
    assert "nina@example.com" in page.content.decode()
    assert "no-store" in page["cache-control"]
    assert join(client, link) == 302
    assert client.get(reverse("portal:organisation", args=[world.organisation.pk])).status_code == 200
    assert role_of(world, "nina@example.com") == Role.ADMIN
    assert User.objects.get(email="nina@example.com").time_zone == "Europe/Madrid"  # of its contract
    client.logout()
    assert client.login(email="nina@example.com", password=NEW_PASSWORD)
    actions = set(AuditEntry.objects.filter(organisation_id=world.organisation.pk).values_list("action", flat=True))
    assert {"invitation.created", "invitation.accepted", "user.created", "member.added"} <= actions
    # Its token is stored nowhere, and the link is spent.
    assert link.split("/")[2] not in str(list(Invitation.objects.values()))
    client.logout()
    assert client.get(link).status_code == 404


def test_a_poor_password_is_refused_and_makes_nothing(client: Client, world: World, invite) -> None:
    link = invite()
    assert client.post(link, {"name": "Nina", "password": "password1234"}).status_code == 200
    assert not User.objects.filter(email="nina@example.com").exists()
    assert client.get(link).status_code == 200


def test_a_known_person_signs_in_and_joins(client: Client, world: World, invite) -> None:
    link = invite("stranger@example.com", "viewer")
    page = client.get(link).content.decode()
    assert reverse("account_login") in page
    assert 'name="password"' not in page
    # Without signing in the link changes nothing for an account that exists.
    join(client, link)
    assert role_of(world, "stranger@example.com") is None
    client.force_login(world.viewer)
    assert client.post(link).status_code == 200  # somebody else
    assert role_of(world, "stranger@example.com") is None
    client.force_login(world.stranger)
    assert client.post(link).status_code == 302
    assert role_of(world, "stranger@example.com") == Role.VIEWER


def test_a_link_ends_after_seven_days_when_withdrawn_and_when_sent_again(client: Client, world: World, invite) -> None:
    first = invite()
    with time_machine.travel(timezone.now() + datetime.timedelta(days=7, minutes=1)):
        assert client.get(first).status_code == 404
        assert join(client, first) == 404
    second = invite()
    assert client.get(first).status_code == 404
    assert client.get(second).status_code == 200
    invitation = Invitation.objects.get(revoked_at=None)
    client.force_login(world.owner)
    client.post(reverse("portal:invitation_withdraw", args=[world.organisation.pk, invitation.pk]))
    client.logout()
    assert client.get(second).status_code == 404
    assert join(client, second) == 404
    assert not User.objects.filter(email="nina@example.com").exists()


def test_who_may_invite(client: Client, world: World, invite) -> None:
    admin = user("ada@example.com")
    member_add(organisation=world.organisation, user=admin, role=Role.ADMIN, actor=world.owner)
    assert invite("nina@example.com", "owner", actor=admin) == ""
    assert invite("nina@example.com", "admin", actor=admin)
    for person in (world.team_mate, world.viewer, world.stranger, world.account_manager):
        assert invite("otto@example.com", "viewer", actor=person) == ""
    assert invite(world.viewer.email, "admin") == ""  # a member already
    assert role_of(world, world.viewer.email) == Role.VIEWER


def test_an_account_manager_hands_a_new_organisation_over(
    client: Client, world: World, django_capture_on_commit_callbacks
) -> None:
    fresh = organisation_create(name="Fresh", actor=world.account_manager)
    sign_in_confirmed(client, world.account_manager)
    url = reverse("portal:invite", args=[fresh.pk])
    with django_capture_on_commit_callbacks(execute=True):
        client.post(url, {"email": "olga@example.com", "role": "owner"})
    assert [message.to for message in mail.outbox] == [["olga@example.com"]]
    member_add(organisation=fresh, user=user("olga@example.com"), role=Role.OWNER, actor=world.account_manager)
    assert client.post(url, {"email": "second@example.com", "role": "owner"}).status_code == 403


def test_inviting_asks_for_the_password_and_then_goes_on(client: Client, world: World) -> None:
    client.force_login(world.owner)
    url = reverse("portal:invite", args=[world.organisation.pk])
    asked = client.post(url, {"email": "nina@example.com", "role": "member"})
    assert asked["Location"].startswith(reverse("account_reauthenticate"))
    assert not Invitation.objects.exists()
    client.post(asked["Location"], {"password": PASSWORD, "next": url})
    assert Invitation.objects.get().email == "nina@example.com"


def test_invitations_are_limited(client: Client, world: World) -> None:
    sign_in_confirmed(client, world.owner)
    url = reverse("portal:invite", args=[world.organisation.pk])
    statuses = [client.post(url, {"email": f"p{n}@example.com", "role": "viewer"}).status_code for n in range(31)]
    assert statuses == [302] * 30 + [429]


def test_the_mail_speaks_the_language_of_its_reader(client: Client, world: World, invite) -> None:
    User.objects.filter(pk=world.stranger.pk).update(language="es")
    invite("stranger@example.com")
    assert "le invita" in mail.outbox[-1].subject
    invite("nina@example.com")
    assert "invites you" in mail.outbox[-1].subject


def test_a_line_break_in_a_name_is_no_header(client: Client, world: World, invite) -> None:
    User.objects.filter(pk=world.owner.pk).update(name="Olivia\r\nBcc: x@example.com")
    assert invite()
    assert mail.outbox[-1].subject.startswith("Olivia Bcc: x@example.com invites you")
    assert mail.outbox[-1].bcc == []


def test_the_invitations_of_a_removed_member_end_with_the_membership(client: Client, world: World, invite) -> None:
    mine = Membership.objects.get(organisation=world.organisation, user=world.team_mate)
    Membership.objects.filter(pk=mine.pk).update(role=Role.ADMIN)
    theirs, ours = invite("other@example.com", actor=world.team_mate), invite("nina@example.com")
    member_revoke(membership=mine, actor=world.owner)
    assert client.get(theirs).status_code == 404
    assert client.get(ours).status_code == 200
