"""People's own matters in Debian's chromium, with a passkey of a virtual authenticator: set-up, sign-in and the
question before a key; invitation, sessions and the first run. Every page is checked by axe-core in light and dark."""

import datetime
import re

import httpx
import pytest
from django.core import mail
from playwright.sync_api import Page, expect

from tests.people import PASSWORD, World, build_world
from tests.portal.test_in_browser import WIDTHS, check, sign_in, sign_out
from yoco.core.ids import uuid7

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

WORDS = {
    "en": {
        "sign_out": "Sign out",
        "second_factor": "Set up a second factor",
        "add": "Add a passkey",
        "alone": "Sign in with it alone, without a password",
        "add_now": "Add the passkey",
        "kept": "I have kept them",
        "use": "Use a passkey",
        "use_again": "Use a passkey or security key",
        "confirm": "Confirm",
        "name": "Your name",
        "join": "Make the account and join",
        "invite": "Invite",
        "waiting": "Waiting for the first heartbeat",
        "arrived": "The first heartbeat has arrived",
        "make": "Make the key",
        "watch": "I have copied it: watch for the first heartbeat",
        "end_others": "End all others",
    },
    "es": {
        "sign_out": "Cerrar sesión",
        "second_factor": "Configurar un segundo factor",
        "add": "Añadir una llave de acceso",
        "alone": "Iniciar sesión solo con ella, sin contraseña",
        "add_now": "Añadir la llave de acceso",
        "kept": "Ya los guardé",
        "use": "Usar una llave de acceso",
        "use_again": "Usar una llave de acceso o de seguridad",
        "confirm": "Confirmar",
        "name": "Su nombre",
        "join": "Crear la cuenta y unirse",
        "invite": "Invitar",
        "waiting": "Esperando el primer latido",
        "arrived": "Ha llegado el primer latido",
        "make": "Crear la clave",
        "watch": "Ya la copié: esperar el primer latido",
        "end_others": "Terminar todas las demás",
    },
}
COMBINATIONS = [("en", "phone"), ("es", "desktop")]


@pytest.fixture
def world(transactional_db: None) -> World:
    return build_world()


def authenticator_add(page: Page) -> None:
    """A platform authenticator that is always unlocked."""
    devtools = page.context.new_cdp_session(page)
    devtools.send("WebAuthn.enable")
    options = {"protocol": "ctap2", "transport": "internal", "automaticPresenceSimulation": True}
    able = dict.fromkeys(("hasResidentKey", "hasUserVerification", "isUserVerified"), True)
    devtools.send("WebAuthn.addVirtualAuthenticator", {"options": {**options, **able}})


@pytest.mark.parametrize(("language", "width"), COMBINATIONS)
def test_a_passkey_signs_in_and_answers_for_a_key(page: Page, world: World, language: str, width: str) -> None:
    words = WORDS[language]
    page.set_viewport_size({"width": WIDTHS[width], "height": 800})
    authenticator_add(page)
    sign_in(page, world.owner, language)
    page.goto("/settings/")
    page.get_by_role("link", name=words["second_factor"]).click()
    check(page)
    page.get_by_role("link", name=words["add"]).click()
    check(page)
    page.locator("[name=password]").fill(PASSWORD)
    page.get_by_role("button", name=words["confirm"]).click()
    check(page)
    page.get_by_label(words["alone"]).check()
    page.get_by_role("button", name=words["add_now"]).click()
    expect(page.get_by_role("link", name=words["kept"])).to_be_visible()
    check(page)
    page.get_by_role("link", name=words["kept"]).click()
    check(page)
    for path in ("webauthn/", "totp/activate/", "recovery-codes/generate/"):
        page.goto(f"/accounts/2fa/{path}")
        check(page)
    sign_out(page, language)

    page.get_by_role("button", name=words["use"]).click()
    expect(page.get_by_role("button", name=words["sign_out"])).to_be_visible()
    page.goto("/settings/sessions/")
    check(page)
    page.goto(f"/organisations/{world.organisation.pk}/keys/new/")
    check(page)
    page.get_by_role("link", name=words["use_again"]).click()
    check(page)
    page.get_by_role("button", name=words["use_again"]).click()
    page.locator("[name=name]").fill("Cluster B")
    check(page)
    page.get_by_role("button", name=words["make"]).click()
    check(page)
    page.get_by_role("link", name=words["watch"]).click()
    expect(page.get_by_text(words["waiting"])).to_be_visible()
    check(page)
    at = datetime.datetime.now(datetime.UTC).isoformat()
    beat = {"agent_id": "node-1", "boot_id": str(uuid7()), "seq": 0, "run_id": "llm-7b", "step": 1, "at": at}
    answer = httpx.post(
        page.url.split("/contracts")[0] + "/api/v1/heartbeats",
        json=beat,
        headers={"Authorization": f"Bearer {world.key_text}"},
    )
    assert answer.status_code == 200
    expect(page.get_by_role("heading", name=words["arrived"])).to_be_visible()
    expect(page.get_by_text("llm-7b")).to_be_visible()
    check(page)
    page.goto(f"/organisations/{world.organisation.pk}/keys/{world.key.pk}/")
    check(page)
    page.goto("/accounts/password/change/")
    check(page)
    page.goto("/accounts/email/")
    check(page)


@pytest.mark.parametrize(("language", "width"), COMBINATIONS)
def test_an_invited_person_joins(page: Page, world: World, language: str, width: str) -> None:
    words = WORDS[language]
    page.set_viewport_size({"width": WIDTHS[width], "height": 800})
    sign_in(page, world.owner, language)
    page.goto(f"/organisations/{world.organisation.pk}/")
    page.locator("[name=email]").last.fill("nina@example.com")
    page.get_by_role("button", name=words["invite"], exact=True).click()
    page.locator("[name=password]").fill(PASSWORD)
    page.get_by_role("button", name=words["confirm"]).click()
    expect(page.get_by_text("nina@example.com").first).to_be_visible()
    check(page)
    found = re.search(r"/invitations/\S+", mail.outbox[-1].body)
    assert found is not None
    page.goto(found[0])
    check(page)  # still signed in as somebody else
    page.locator("main").get_by_role("button").click()
    check(page)
    page.get_by_label(words["name"]).fill("Nina")
    page.locator("[name=password]").fill("a long and quite uncommon phrase")
    page.get_by_role("button", name=words["join"]).click()
    expect(page.locator(".who .name")).to_have_text("Nina")
    check(page)
    page.goto(found[0])
    check(page)  # no longer open
    sign_out(page, language)
    for path in ("/accounts/password/reset/", "/accounts/password/reset/key/x-y/", "/sign-on/"):
        page.goto(path)
        check(page)
