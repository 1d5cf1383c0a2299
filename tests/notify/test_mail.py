"""E-mails as people get them: in their language and zone, once, and no more of what they do not want."""

import datetime
import re
import smtplib

import pytest
import time_machine
from django.core import mail
from django.core.mail.backends.locmem import EmailBackend
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from tests.people import World
from tests.portal.scene import NOW, Scene, issue_and_approve, scene  # noqa: F401  (a fixture)
from yoco.accounts.models import Membership, User
from yoco.accounts.services import member_revoke
from yoco.contracts.models import Contract
from yoco.core.outbox import outbox_record
from yoco.guarantee.reviews import dispute_decide, dispute_raise
from yoco.guarantee.selectors import year_report
from yoco.notify.due import tick_do
from yoco.notify.fan_out import events_fan_out
from yoco.notify.mail import WAITS
from yoco.notify.models import DeliveryState, MailDelivery, MailPreference

DAY = datetime.timedelta(days=1)


def tick() -> None:
    assert tick_do(as_of=timezone.now()).failed == []


def membership(world: World, person: User) -> Membership:
    return Membership.objects.get(organisation=world.organisation, user=person)


def subjects(person: User) -> list[str]:
    return sorted(message.subject for message in mail.outbox if message.to == [person.email])


def closed(world: World) -> None:
    """An event whose notice needs no more than the year: a credit was approved."""
    payload = {"year": str(world.year.pk), "contract": str(world.contract.pk)}
    outbox_record(kind="credit.approved", subject=world.year, organisation_id=world.organisation.pk, payload=payload)


def test_each_member_is_told_once_of_what_happened(scene: Scene) -> None:  # noqa: F811
    world = scene.world
    issue_and_approve(scene)
    objection = dispute_raise(incident=scene.rolled_back, text="The spare was ours.", actor=world.owner)
    dispute_decide(dispute=objection, accept=False, note="It was not <ours>.", actor=world.account_manager)
    User.objects.filter(pk=world.viewer.pk).update(language="es")
    tick()
    tick()
    assert subjects(world.owner) == [
        "A credit for year 1 of ACME-7 was approved",
        "A credit for year 1 of ACME-7 was issued",
        "Year 1 of ACME-1 is closed",
        "Year 1 of ACME-7 is closed",
        "Your objection on ACME-7 was turned down",
    ]
    assert "El año 1 de ACME-7 está cerrado" in subjects(world.viewer)
    assert subjects(world.stranger) == ["Year 1 of OTHER-1 is closed"]
    assert subjects(world.account_manager) == []
    decided = next(m for m in mail.outbox if m.to == [world.owner.email] and "objection" in m.subject)
    assert "It was not <ours>." in decided.body
    assert "It was not &lt;ours&gt;." in str(decided.alternatives[0].content)
    assert f"/incidents/{scene.rolled_back.public_id}/" in decided.body
    year = next(m for m in mail.outbox if m.to == [world.owner.email] and "ACME-7 is closed" in m.subject)
    assert "16 of 20 failures were resolved without loss." in year.body
    assert MailDelivery.objects.exclude(state=DeliveryState.DELIVERED).count() == 0


def test_one_click_in_the_mail_program_ends_a_topic(world: World) -> None:
    closed(world)
    tick()
    message = next(m for m in mail.outbox if m.to == [world.owner.email])
    assert message.extra_headers["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    link = re.fullmatch(r"<http://[^/]+(/.*)>", message.extra_headers["List-Unsubscribe"])
    assert link is not None
    stranger = Client(enforce_csrf_checks=True)  # a mail program: no session, no token
    assert stranger.get(link[1]).status_code == 200
    assert not MailPreference.objects.exists()  # a scanner that opens links stops nothing
    assert stranger.post(link[1], {"List-Unsubscribe": "One-Click"}).status_code == 200
    assert stranger.post(link[1][:-3] + "xx/").status_code == 404
    mail.outbox.clear()
    closed(world)
    tick()
    assert subjects(world.owner) == []
    assert len(subjects(world.team_mate)) == 1


def test_people_choose_in_the_settings(client: Client, world: World) -> None:
    client.force_login(world.team_mate)
    url = reverse("portal:mail_settings", args=[membership(world, world.team_mate).pk])
    assert client.post(url, {"topics": ["disputes"], "digest": "weekly"}).status_code == 302
    held = MailPreference.objects.get()
    assert held.digest == "weekly"
    assert "credits" in held.muted
    closed(world)
    tick()
    assert subjects(world.team_mate) == []
    theirs = reverse("portal:mail_settings", args=[membership(world, world.owner).pk])
    assert client.get(theirs).status_code == 404
    client.force_login(world.account_manager)
    assert client.get(theirs).status_code == 404


def test_who_has_left_hears_nothing_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(world)
    with monkeypatch.context() as patch:
        patch.setattr(EmailBackend, "send_messages", refuse)
        tick()
    member_revoke(membership=membership(world, world.viewer), actor=world.owner)
    with time_machine.travel(timezone.now() + datetime.timedelta(minutes=2), tick=True):
        tick()
    assert subjects(world.viewer) == []
    assert MailDelivery.objects.get(membership__user=world.viewer).state == DeliveryState.DEAD


def refuse(*_: object) -> int:
    raise smtplib.SMTPServerDisconnected("Connection unexpectedly closed")


def test_a_mail_server_that_is_away_is_tried_again_with_the_same_message_id(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def note(_backend: object, messages: list[mail.EmailMessage]) -> int:
        seen.extend(m.extra_headers["Message-ID"] for m in messages if m.to == [world.owner.email])
        return refuse()

    closed(world)
    with monkeypatch.context() as patch:
        patch.setattr(EmailBackend, "send_messages", note)
        tick()
        tick()
    assert MailDelivery.objects.filter(error__startswith="SMTPServerDisconnected").count() == 3
    with time_machine.travel(timezone.now() + datetime.timedelta(minutes=2), tick=True):
        tick()
    (message,) = (m for m in mail.outbox if m.to == [world.owner.email])
    assert seen == [message.extra_headers["Message-ID"]]


@pytest.mark.parametrize(
    ("digest", "zone", "before", "due", "subject"),
    [
        # Monday the 22nd and the 1st, seven in the morning where the reader is.
        ("weekly", "Europe/Madrid", "2027-11-22T05:59Z", "2027-11-22T06:01Z", "The week of Acme"),
        ("weekly", "Asia/Tokyo", "2027-11-21T21:59Z", "2027-11-21T22:01Z", "The week of Acme"),
        ("monthly", "America/Los_Angeles", "2027-12-01T14:59Z", "2027-12-01T15:01Z", "The month of Acme"),
    ],
)
def test_a_digest_comes_once_in_the_readers_morning(
    client: Client,
    scene: Scene,  # noqa: F811
    digest: str,
    zone: str,
    before: str,
    due: str,
    subject: str,
) -> None:
    owner = scene.world.owner
    User.objects.filter(pk=owner.pk).update(time_zone=zone)
    client.force_login(owner)
    client.post(
        reverse("portal:mail_settings", args=[membership(scene.world, owner).pk]), {"topics": [], "digest": digest}
    )
    tick()  # switched on in the middle of a period: nothing for the one that runs
    with time_machine.travel(before, tick=True):
        tick()
    assert subjects(owner) == []
    for minutes in (0, 1, 60 * 24 * 2):
        with time_machine.travel(datetime.datetime.fromisoformat(due) + minutes * DAY / 1440, tick=True):
            tick()
    assert subjects(owner) == [subject]
    body = next(m for m in mail.outbox if m.subject == subject).body
    assert "ACME-7 · Year 2" in body
    report = year_report(year=scene.running_year)
    assert f"{report.resolved} of {report.counted} resolved without loss (" in body
    assert f"Pending: {report.pending}" in body
    assert MailDelivery.objects.filter(digest=digest).count() == 1


def test_a_line_break_in_a_name_is_no_header(world: World) -> None:
    Contract.objects.filter(pk=world.contract.pk).update(number="ACME\r\nBcc: x@example.com")
    closed(world)
    tick()
    assert subjects(world.owner) == ["A credit for year 1 of ACME Bcc: x@example.com was approved"]
    assert all(message.bcc == [] for message in mail.outbox)


def test_an_e_mail_whose_attempts_never_come_to_an_end_is_given_up(world: World) -> None:
    closed(world)
    with time_machine.travel(timezone.now() - DAY):
        events_fan_out()
    MailDelivery.objects.update(tries=len(WAITS) + 1)
    tick()
    assert mail.outbox == []
    assert set(MailDelivery.objects.values_list("state", flat=True)) == {DeliveryState.DEAD}
