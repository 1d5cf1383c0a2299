"""The page of a key: what it tells, rotation with a chosen end, expiry, and revocation that asks nothing."""

import datetime
import re

import time_machine
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from tests.people import World, sign_in_confirmed
from tests.portal.test_pages import text_of
from yoco.accounts.models import AgentKey
from yoco.accounts.services import agent_key_verify


def url(world: World, name: str) -> str:
    return reverse(name, args=[world.organisation.pk, world.key.pk])


def shown(page: str) -> str:
    found = re.search(r"yoco_(?:ingest|read)_[0-9A-Za-z]{12}_[0-9A-Za-z]+", page)
    assert found is not None
    return found[0]


def test_everyone_in_the_organisation_sees_it_and_strangers_do_not(client: Client, world: World) -> None:
    agent_key_verify(world.key_text)
    client.force_login(world.viewer)
    page = text_of(client, url(world, "portal:key"))
    for words in ("Report incidents", "ACME-1", "Olivia", "when it is revoked"):
        assert words in page
    assert "Revoke this key now" not in page
    client.force_login(world.stranger)
    assert client.get(url(world, "portal:key")).status_code == 404
    assert client.post(url(world, "portal:key_rotate"), {"ends_at": "2099-01-01T00:00"}).status_code == 404


def test_rotation_until_a_chosen_time(client: Client, world: World) -> None:
    with time_machine.travel("2026-12-01T10:00:00Z", tick=False) as clock:
        world.owner.time_zone = "Europe/Madrid"
        world.owner.save(update_fields=["time_zone"])
        client.force_login(world.owner)
        asked = client.post(url(world, "portal:key_rotate"), {"ends_at": "2026-12-03T11:00"})
        assert asked["Location"].startswith(reverse("account_reauthenticate"))
        sign_in_confirmed(client, world.owner)
        answer = client.post(url(world, "portal:key_rotate"), {"ends_at": "2026-12-03T11:00"})
        assert (answer.status_code, "no-store" in answer["cache-control"]) == (201, True)
        text = shown(answer.content.decode())
        world.key.refresh_from_db()
        assert world.key.expires_at == datetime.datetime(2026, 12, 3, 10, tzinfo=datetime.UTC)
        assert agent_key_verify(text) is not None
        assert agent_key_verify(world.key_text) is not None
        clock.move_to("2026-12-03T10:00:01Z")
        assert agent_key_verify(text) is not None
        assert agent_key_verify(world.key_text) is None


def test_a_rotation_that_would_end_in_the_past_changes_nothing(client: Client, world: World) -> None:
    sign_in_confirmed(client, world.owner)
    for ends_at in ("2020-01-01T00:00", "soon", ""):
        assert client.post(url(world, "portal:key_rotate"), {"ends_at": ends_at}).status_code == 302
    assert AgentKey.objects.filter(organisation=world.organisation).count() == 1
    assert agent_key_verify(world.key_text) is not None


def test_revocation_asks_no_password(client: Client, world: World) -> None:
    client.force_login(world.owner)
    assert client.post(url(world, "portal:key_revoke")).status_code == 302
    assert agent_key_verify(world.key_text) is None
    assert "Revoke this key now" not in text_of(client, url(world, "portal:key"))


def test_a_new_key_with_an_end_and_one_for_reading(client: Client, world: World) -> None:
    sign_in_confirmed(client, world.owner)
    create = reverse("portal:key_create", args=[world.organisation.pk])
    fields = {"name": "B", "scope": "ingest", "contract": str(world.contract.pk)}
    past = client.post(create, {**fields, "ends_on": "2020-01-01"})
    assert (past.status_code, "choose a later expiry" in past.content.decode()) == (200, True)
    assert "belongs to a contract" in client.post(create, {**fields, "contract": ""}).content.decode()
    tomorrow = timezone.localdate() + datetime.timedelta(days=1)
    answer = client.post(create, {**fields, "ends_on": tomorrow.isoformat()})
    key = agent_key_verify(shown(answer.content.decode()))
    assert key is not None
    assert key.expires_at == timezone.make_aware(datetime.datetime.combine(tomorrow, datetime.time.min))
    reader = client.post(create, {"name": "reports", "scope": "read"})
    text = shown(reader.content.decode())
    read = Client().get("/api/v1/contracts", headers={"authorization": f"Bearer {text}"})
    assert [row["number"] for row in read.json()["results"]] == ["ACME-1"]
