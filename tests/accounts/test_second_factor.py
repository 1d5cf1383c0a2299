"""Second factors through the pages: set-up, sign-in, recovery, the desk, and the question before a step that matters.

Passkeys need a browser: see test_in_browser.py.
"""

import base64
import hashlib
import hmac
import re
import time

import pytest
import time_machine
from allauth.mfa.models import Authenticator
from django.core import mail
from django.test import Client
from django.urls import reverse

from tests.people import PASSWORD, World, sign_in_confirmed
from yoco.accounts.models import User
from yoco.core.models import AuditEntry


def code_of(secret: str) -> str:
    """RFC 6238 with its defaults."""
    counter = int(time.time() // 30).to_bytes(8, "big")
    digest = hmac.new(base64.b32decode(secret), counter, hashlib.sha1).digest()
    at = digest[-1] & 15
    return f"{(int.from_bytes(digest[at : at + 4], 'big') & 0x7FFFFFFF) % 10**6:06}"


def app_set_up(client: Client, person: User) -> str:
    """Signs in, sets up an authenticator app, and answers with its secret."""
    sign_in_confirmed(client, person)
    page = client.get(reverse("mfa_activate_totp")).content.decode()
    found = re.search(r"<code class=\"break\">([A-Z2-7]+)</code>", page)
    assert found is not None
    answer = client.post(reverse("mfa_activate_totp"), {"code": code_of(found[1])})
    assert answer["Location"] == reverse("mfa_view_recovery_codes")
    return found[1]


def password_given(client: Client, person: User) -> str:
    client.logout()
    answer = client.post(reverse("account_login"), {"login": person.email, "password": PASSWORD})
    return str(answer["Location"])


def test_the_password_alone_no_longer_opens_the_account(
    client: Client, world: World, django_capture_on_commit_callbacks
) -> None:
    with time_machine.travel("2026-12-01T10:00:00Z", tick=False) as clock:
        with django_capture_on_commit_callbacks(execute=True):
            secret = app_set_up(client, world.owner)
        assert [message.to for message in mail.outbox] == [[world.owner.email]]
        assert AuditEntry.objects.filter(actor=world.owner, action="sign_in.totp_activated").count() == 1
        # A copy of the database does not give the secret away.
        assert secret not in str(list(Authenticator.objects.values("data")))
        assert password_given(client, world.owner) == reverse("mfa_authenticate")
        assert client.get("/settings/").status_code == 302
        used = code_of(secret)
        assert client.post(reverse("mfa_authenticate"), {"code": "000000"}).status_code == 200
        clock.shift(60)
        assert client.post(reverse("mfa_authenticate"), {"code": code_of(secret)}).status_code == 302
        assert client.get("/settings/").status_code == 200
        assert used != code_of(secret)


def test_a_recovery_code_works_once(client: Client, world: World) -> None:
    app_set_up(client, world.owner)
    page = client.get(reverse("mfa_view_recovery_codes")).content.decode()
    code = re.findall(r"\b\d{8}\b", page)[0]
    password_given(client, world.owner)
    assert client.post(reverse("mfa_authenticate"), {"code": code}).status_code == 302
    assert client.get("/settings/").status_code == 200
    password_given(client, world.owner)
    assert client.post(reverse("mfa_authenticate"), {"code": code}).status_code == 200
    assert client.get("/settings/").status_code == 302


def test_the_question_before_a_key_takes_the_second_factor_too(client: Client, world: World) -> None:
    with time_machine.travel("2026-12-01T10:00:00Z", tick=False) as clock:
        secret = app_set_up(client, world.owner)
        clock.shift(600)
        url = reverse("portal:key_create", args=[world.organisation.pk])
        asked = client.get(url)
        assert asked["Location"].startswith(reverse("account_reauthenticate"))
        other_way = reverse("mfa_reauthenticate") + f"?next={url}"
        assert reverse("mfa_reauthenticate") in client.get(asked["Location"]).content.decode()
        assert client.post(other_way, {"code": "123456", "next": url}).status_code == 200
        assert client.get(url).status_code == 302
        assert client.post(other_way, {"code": code_of(secret), "next": url})["Location"] == url
        assert client.get(url).status_code == 200
        clock.shift(301)
        assert client.get(url).status_code == 302


def test_the_desk_waits_for_a_second_factor_where_the_settings_say_so(client: Client, world: World, settings) -> None:
    settings.REQUIRE_MFA_FOR_DESK = True
    client.force_login(world.account_manager)
    for url in ("/desk/", f"/organisations/{world.organisation.pk}/", "/settings/"):
        assert client.get(url)["Location"] == reverse("mfa_index")
    refused = client.get("/api/v1/contracts")
    assert (refused.status_code, refused["content-type"]) == (403, "application/problem+json")
    assert client.get(reverse("mfa_index")).status_code == 200
    app_set_up(client, world.account_manager)
    assert client.get("/desk/").status_code == 200
    # Customers choose for themselves.
    client.force_login(world.owner)
    assert client.get("/settings/").status_code == 200


def test_a_new_secret_key_still_reads_what_the_old_one_wrote(client: Client, world: World, settings) -> None:
    secret = app_set_up(client, world.owner)
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "the next one, long enough to be a key of its own"
    with time_machine.travel(time.time() + 60):
        password_given(client, world.owner)
        assert client.post(reverse("mfa_authenticate"), {"code": code_of(secret)}).status_code == 302


def test_a_new_address_counts_once_it_is_confirmed(
    client: Client, world: World, django_capture_on_commit_callbacks
) -> None:
    sign_in_confirmed(client, world.owner)
    with django_capture_on_commit_callbacks(execute=True):
        client.post(reverse("account_email"), {"email": "new@example.com", "action_add": ""})
    assert mail.outbox[-1].to == ["new@example.com"]
    world.owner.refresh_from_db()
    assert world.owner.email == "olivia@example.com"
    found = re.search(r"http://testserver(/\S+)", mail.outbox[-1].body)
    assert found is not None
    assert "new@example.com" in client.get(found[1]).content.decode()
    client.post(found[1])
    world.owner.refresh_from_db()
    assert world.owner.email == "new@example.com"
    assert client.login(email="new@example.com", password=PASSWORD)


def test_a_new_address_asks_for_the_password_first(client: Client, world: World) -> None:
    client.force_login(world.owner)
    answer = client.post(reverse("account_email"), {"email": "new@example.com", "action_add": ""})
    assert answer["Location"].startswith(reverse("account_reauthenticate"))


def test_somebody_without_any_factor_is_sent_to_set_one_up(client: Client, world: World) -> None:
    world.owner.set_unusable_password()
    world.owner.save(update_fields=["password"])
    client.force_login(world.owner)
    url = reverse("portal:key_create", args=[world.organisation.pk])
    assert client.get(url)["Location"].startswith(reverse("mfa_index"))
    assert client.get(reverse("mfa_activate_totp")).status_code == 200


@pytest.mark.parametrize("language", ["en", "es"])
def test_forgotten_password(client: Client, world: World, django_capture_on_commit_callbacks, language: str) -> None:
    User.objects.filter(pk=world.owner.pk).update(language=language)
    with django_capture_on_commit_callbacks(execute=True):
        client.post(reverse("account_reset_password"), {"email": "nobody@example.com"})
        client.post(reverse("account_reset_password"), {"email": world.owner.email})
    assert [message.to for message in mail.outbox] == [[world.owner.email]]
    assert (
        mail.outbox[0].subject
        == {
            "en": "Choose a new password for YOCO",
            "es": "Elija una nueva contraseña para YOCO",
        }[language]
    )
    found = re.search(r"http://testserver(/\S+)", mail.outbox[0].body)
    assert found is not None
    form = client.get(found[1], follow=True)
    new = "a long and quite uncommon phrase"
    client.post(form.request["PATH_INFO"], {"password1": new, "password2": new})
    assert client.login(email=world.owner.email, password=new)
    client.logout()
    used = client.get(found[1], follow=True).content.decode()
    assert reverse("account_reset_password") in used
    assert 'name="password1"' not in used
