"""The list of live sessions: what it shows, and that an ended session opens nothing."""

import datetime

import time_machine
from allauth.usersessions.models import UserSession
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from tests.people import PASSWORD, World
from yoco.accounts.models import User

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
SAFARI = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15 Version/18.0 Safari/604.1"
SESSIONS = "/settings/sessions/"


def signed_in(person: User, user_agent: str, address: str) -> Client:
    client = Client(HTTP_USER_AGENT=user_agent, REMOTE_ADDR=address)
    answer = client.post(reverse("account_login"), {"login": person.email, "password": PASSWORD})
    assert answer.status_code == 302
    return client


def opens(client: Client) -> bool:
    return client.get(SESSIONS).status_code == 200


def test_one_session_ends_another(world: World, django_assert_max_num_queries) -> None:
    laptop, phone = signed_in(world.owner, FIREFOX, "192.0.2.7"), signed_in(world.owner, SAFARI, "198.51.100.9")
    stranger = signed_in(world.stranger, FIREFOX, "203.0.113.5")
    with django_assert_max_num_queries(12):
        page = laptop.get(SESSIONS).content.decode()
    for text in ("Firefox on Linux", "192.0.2.7", "Safari on iPhone", "198.51.100.9"):
        assert text in page
    assert "203.0.113.5" not in page
    row = UserSession.objects.get(ip="198.51.100.9")
    assert stranger.post(reverse("portal:session_end", args=[row.pk])).status_code == 404
    assert opens(phone)
    assert laptop.post(reverse("portal:session_end", args=[row.pk])).status_code == 302
    assert (opens(laptop), opens(phone), opens(stranger)) == (True, False, True)
    # One's own ends by signing out, not here.
    own = UserSession.objects.get(ip="192.0.2.7")
    assert laptop.post(reverse("portal:session_end", args=[own.pk])).status_code == 404


def test_all_others_end_at_once(world: World) -> None:
    first, second, third = (signed_in(world.owner, FIREFOX, f"192.0.2.{n}") for n in (1, 2, 3))
    assert second.post(reverse("portal:sessions_end_others")).status_code == 302
    assert (opens(first), opens(second), opens(third)) == (False, True, False)


def test_a_new_password_ends_the_others(world: World) -> None:
    laptop, phone = signed_in(world.owner, FIREFOX, "192.0.2.7"), signed_in(world.owner, SAFARI, "198.51.100.9")
    new = "a long and quite uncommon phrase"
    fields = {"oldpassword": PASSWORD, "password1": new, "password2": new}
    assert laptop.post(reverse("account_change_password"), fields).status_code == 302
    assert (opens(laptop), opens(phone)) == (True, False)
    page = laptop.get(SESSIONS).content.decode()
    assert ("192.0.2.7" in page, "198.51.100.9" in page) == (True, False)


def test_last_seen_moves_at_most_every_five_minutes(world: World, django_assert_max_num_queries) -> None:
    with time_machine.travel(timezone.now(), tick=False) as clock:
        client = signed_in(world.owner, FIREFOX, "192.0.2.7")
        begun = UserSession.objects.get().last_seen_at
        clock.shift(datetime.timedelta(minutes=4))
        client.get("/settings/")
        assert UserSession.objects.get().last_seen_at == begun
        clock.shift(datetime.timedelta(minutes=2))
        with django_assert_max_num_queries(12):
            client.get("/settings/", REMOTE_ADDR="192.0.2.8")
        row = UserSession.objects.get()
        assert (row.last_seen_at, row.ip) == (timezone.now(), "192.0.2.8")


def test_a_server_without_an_address_of_its_clients_still_signs_in(world: World) -> None:
    client = signed_in(world.owner, "", "")  # behind a Unix socket
    page = client.get(SESSIONS).content.decode()
    assert "unknown address" in page
    assert "Unknown browser" in page


def test_the_api_has_no_sessions(client: Client, world: World) -> None:
    for key, status in (("yoco_ingest_unknown", 401), (world.key_text, 422)):
        answer = client.post(
            "/api/v1/reports", {}, content_type="application/json", headers={"authorization": f"Bearer {key}"}
        )
        assert answer.status_code == status
    assert not UserSession.objects.exists()
