"""Comments on an incident: both sides write and read them, nobody changes one, and the others are told."""

import pytest
from django.db import DatabaseError, transaction
from django.test import Client
from django.urls import reverse

from tests.portal.scene import Scene
from tests.portal.test_pages import text_of
from yoco.accounts.models import User
from yoco.core.models import AuditEntry, OutboxEvent
from yoco.incidents.models import Comment
from yoco.notify.fan_out import events_fan_out
from yoco.notify.models import MailDelivery


@pytest.fixture
def page(scene: Scene) -> str:
    return reverse("portal:incident", args=[scene.contract.pk, scene.rolled_back.public_id])


def write(client: Client, person: User, scene: Scene, text: str) -> int:
    client.force_login(person)
    url = reverse("portal:comment", args=[scene.contract.pk, scene.rolled_back.public_id])
    return client.post(url, {"text": text}).status_code


def test_both_sides_talk_on_the_page_and_the_desk_sees_what_waits(client: Client, scene: Scene, page: str) -> None:
    world = scene.world
    assert write(client, world.team_mate, scene, "  Our rack had <b>no</b> power.\n") == 302
    client.force_login(world.account_manager)
    assert "Comments to answer 1" in text_of(client, reverse("desk:portfolio"))
    assert "ACME-7 · llm-7b pre-training" in text_of(client, reverse("desk:queue", args=["comments"]))
    assert write(client, world.account_manager, scene, "Which breaker?") == 302
    assert "Comments to answer 0" in text_of(client, reverse("desk:portfolio"))

    client.force_login(world.viewer)
    read = text_of(client, page)
    assert "Our rack had &lt;b&gt;no&lt;/b&gt; power." in read
    assert read.index("Our rack had") < read.index("Account manager") < read.index("Which breaker?")
    assert "Your comment" not in read  # viewers read
    assert [(row.text, row.by, row.by_desk) for row in Comment.objects.all()] == [
        ("Our rack had <b>no</b> power.", world.team_mate, False),
        ("Which breaker?", world.account_manager, True),
    ]


def test_everyone_but_the_writer_is_told_and_the_audit_log_knows(client: Client, scene: Scene) -> None:
    events_fan_out()
    before = MailDelivery.objects.count()
    assert write(client, scene.world.team_mate, scene, "Our rack had no power.") == 302
    events_fan_out()
    told = MailDelivery.objects.order_by("pk")[before:]
    assert {mail.membership.user for mail in told} == {scene.world.owner, scene.world.viewer}
    event = OutboxEvent.objects.get(kind="incident.commented")
    assert "power" not in str(event.payload)
    assert AuditEntry.objects.get(action="incident.commented").actor == scene.world.team_mate


def test_viewers_strangers_and_empty_texts_write_nothing(client: Client, scene: Scene, page: str) -> None:
    assert write(client, scene.world.viewer, scene, "No.") == 403
    assert write(client, scene.world.stranger, scene, "No.") == 404
    assert write(client, scene.world.owner, scene, " \n ") == 302
    assert "This field is required." in text_of(client, page)
    assert not Comment.objects.exists()


def test_the_database_refuses_to_change_a_comment(client: Client, scene: Scene) -> None:
    assert write(client, scene.world.owner, scene, "As I said.") == 302
    for change in (lambda: Comment.objects.update(text="Otherwise."), lambda: Comment.objects.all().delete()):
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            change()
