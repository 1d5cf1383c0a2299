"""The users' main paths in Debian's chromium: both languages, phone and desktop; every page in light and dark has
no fault that axe-core knows, needs no sideways scrolling and breaks no Content-Security-Policy."""

import re
from collections.abc import Iterator

import pytest
import time_machine
from playwright.sync_api import Page, expect

from tests.browser import accessibility_problems
from tests.people import PASSWORD
from tests.portal.scene import NOW, Scene, build_scene
from yoco.accounts.models import User
from yoco.guarantee.snapshots import snapshots_make

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

WIDTHS = {"phone": 360, "desktop": 1280}
WORDS = {
    "en": {
        "sign_in": "Sign in",
        "sign_out": "Sign out",
        "year_1": "Year 1",
        "incidents": "Incidents",
        "reports": "Reports",
        "timeline": "Timeline",
        "filter": "Filter",
        "outcome": "Outcome",
        "not_resolved": "Not resolved without loss",
        "evidence": "Evidence",
        "credits": "Credits",
        "settings": "Settings",
        "time_zone": "Time zone",
        "save": "Save",
        "saved": "Your settings are saved.",
        "issue": "Review and issue",
        "confirm": "Confirm",
        "reason": "Reason",
        "issue_now": "Issue the credit",
        "statement": "Open the statement",
        "object": "Object to this placing",
        "send": "Send the objection",
        "wrong": "What is wrong, and how you know",
        "new_key": "New key",
        "make_key": "Make the key",
        "name": "Name",
        "exclude": "Propose an exclusion",
        "propose": "Propose the exclusion",
        "approve": "Review and approve",
        "approve_now": "Approve the credit",
        "apply": "Apply to order R-2027",
        "apply_now": "Apply the credits",
        "applied": "The credits are applied to order R-2027.",
    },
    "es": {
        "sign_in": "Iniciar sesión",
        "sign_out": "Cerrar sesión",
        "year_1": "Año 1",
        "incidents": "Incidentes",
        "reports": "Informes",
        "timeline": "Cronología",
        "filter": "Filtrar",
        "outcome": "Resultado",
        "not_resolved": "No resuelto sin pérdida",
        "evidence": "Prueba",
        "credits": "Créditos",
        "settings": "Ajustes",
        "time_zone": "Zona horaria",
        "save": "Guardar",
        "saved": "Sus ajustes están guardados.",
        "issue": "Revisar y emitir",
        "confirm": "Confirmar",
        "reason": "Motivo",
        "issue_now": "Emitir el crédito",
        "statement": "Abrir el extracto",
        "object": "Reclamar por esta clasificación",
        "send": "Enviar la reclamación",
        "wrong": "Qué está mal y cómo lo sabe",
        "new_key": "Nueva clave",
        "make_key": "Crear la clave",
        "name": "Nombre",
        "exclude": "Proponer una exclusión",
        "propose": "Proponer la exclusión",
        "approve": "Revisar y aprobar",
        "approve_now": "Aprobar el crédito",
        "apply": "Aplicar al pedido R-2027",
        "apply_now": "Aplicar los créditos",
        "applied": "Los créditos se aplicaron al pedido R-2027.",
    },
}


@pytest.fixture
def scene(transactional_db: None) -> Iterator[Scene]:
    with time_machine.travel(NOW, tick=True):
        made = build_scene()
        snapshots_make(as_of=NOW)
        yield made


def check(page: Page) -> None:
    """The page as it is now: every rule in light; in dark, which differs by colours alone, those of colour."""
    for theme, rules in (("light", None), ("dark", ["color-contrast", "link-in-text-block"])):
        # Without motion, so that no colour is caught half-way between the themes.
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
        assert accessibility_problems(page, rules=rules) == [], f"{page.url} in {theme}"
    too_wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert too_wide <= 0, f"{page.url} is {too_wide} px wider than the window"


def printed(page: Page) -> None:
    """On paper: the content without what is only to click on, every evidence open, all columns, and for whom."""
    page.emulate_media(media="print")
    for gone in (".top", ".foot", "main button"):
        expect(page.locator(gone).first).to_be_hidden()
    expect(page.locator(".conditions details dd").first).to_be_visible()
    expect(page.locator(".printed")).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.emulate_media(media="screen")


def sign_in(page: Page, person: User, language: str) -> None:
    words = WORDS[language]
    page.goto("/accounts/login/")
    page.get_by_role("button", name={"en": "English", "es": "Español"}[language]).click()
    check(page)
    page.locator("[name=login]").fill(person.email)
    page.locator("[name=password]").fill(PASSWORD)
    page.get_by_role("button", name=words["sign_in"]).click()
    expect(page.get_by_role("button", name=words["sign_out"])).to_be_visible()


def sign_out(page: Page, language: str) -> None:
    page.get_by_role("button", name=WORDS[language]["sign_out"]).click()
    page.wait_for_url("**/accounts/login/**")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("language", WORDS)
def test_a_customer_follows_a_number_to_its_evidence(page: Page, scene: Scene, language: str, width: str) -> None:
    words = WORDS[language]
    page.set_viewport_size({"width": WIDTHS[width], "height": 800})
    sign_in(page, scene.world.owner, language)
    check(page)
    page.get_by_role("link", name="ACME-7").click()
    check(page)
    page.get_by_role("link", name=re.compile(words["year_1"])).first.click()
    expect(page.get_by_text(re.compile(r"80[.,]00 %")).first).to_be_visible()
    page.locator("main details summary").first.click()  # the days of the budget
    check(page)
    page.get_by_role("link", name=words["statement"]).click()
    statement = page.url
    page.locator("form[action$='/share/'] button").click()
    check(page)
    page.goto(re.sub(r"^https?://[^/]+", "", page.locator("main pre").inner_text()))
    check(page)
    page.goto(statement)
    check(page)  # with the link in its list
    page.get_by_role("navigation").get_by_role("link", name=words["reports"]).first.click()
    check(page)
    page.locator("main a[href*='/snapshots/']").nth(2).click()  # the second latest; each has a link to its PDF too
    page.locator("main details summary").first.click()
    check(page)
    page.get_by_role("navigation").get_by_role("link", name=words["incidents"]).first.click()
    check(page)
    page.get_by_role("link", name=words["timeline"]).click()
    check(page)
    page.go_back()
    page.get_by_label(words["outcome"]).select_option(label=words["not_resolved"])
    page.get_by_role("button", name=words["filter"]).click()
    assert "outcome=not_resolved" in page.url
    expect(page.get_by_role("rowheader")).to_have_count(4)
    page.get_by_role("rowheader").first.get_by_role("link").click()
    printed(page)
    page.get_by_text(words["evidence"], exact=True).first.click()
    check(page)
    page.get_by_role("link", name=words["object"]).click()
    check(page)
    page.get_by_label(words["wrong"]).fill("The spare was ours.")
    page.get_by_role("button", name=words["send"]).click()
    expect(page.get_by_text("The spare was ours.")).to_be_visible()
    page.locator("form[action$='/comments/'] textarea").fill("The breaker of our row tripped.")
    page.locator("form[action$='/comments/'] button").click()
    expect(page.get_by_text("The breaker of our row tripped.")).to_be_visible()
    check(page)
    page.get_by_role("navigation").get_by_role("link", name=words["credits"]).click()
    check(page)
    page.get_by_role("navigation").get_by_role("link", name=words["settings"]).click()
    page.get_by_label(words["time_zone"]).select_option("Europe/Madrid")
    page.get_by_role("button", name=words["save"]).click()
    expect(page.get_by_text(words["saved"])).to_be_visible()
    check(page)
    page.get_by_role("link", name="Acme", exact=True).click()
    check(page)
    page.get_by_role("link", name=words["new_key"]).click()
    check(page)
    give_password(page, language)
    page.get_by_label(words["name"]).fill("Cluster B")
    page.locator("[name=contract]").select_option(label="ACME-7")
    check(page)
    page.get_by_role("button", name=words["make_key"]).click()
    expect(page.get_by_text("--report-key-env YOCO_AGENT_KEY")).to_be_visible()
    check(page)
    organisation = scene.world.organisation
    page.goto(f"/organisations/{organisation.pk}/webhooks/new/")
    check(page)
    page.locator("[name=name]").fill("Ledger")
    page.locator("[name=url]").fill("https://hooks.example.com/yoco")
    page.locator("main form button").click()
    expect(page.get_by_text("whsec_").first).to_be_visible()
    check(page)
    page.locator("main a.button").click()
    page.locator("form[action$='/test/'] button").click()
    check(page)
    page.goto(f"/organisations/{organisation.pk}/webhooks/")
    check(page)
    page.goto(f"/settings/mail/{scene.world.owner.memberships.get().pk}/")
    check(page)
    page.goto(f"/organisations/{organisation.pk}/audit/")
    expect(page.get_by_role("row")).not_to_have_count(0)
    check(page)
    page.goto("/no/such/page/")
    check(page)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("language", WORDS)
def test_two_account_managers_settle_a_credit(page: Page, scene: Scene, language: str, width: str) -> None:
    words = WORDS[language]
    page.set_viewport_size({"width": WIDTHS[width], "height": 800})
    sign_in(page, scene.world.account_manager, language)
    check(page)
    page.goto("/desk/queues/credits-to-issue/")
    check(page)
    page.get_by_role("link", name=re.compile("ACME-7 · ")).first.click()
    check(page)
    page.get_by_role("link", name=words["issue"]).click()
    check(page)
    give_password(page, language)
    check(page)
    page.get_by_label(words["reason"]).fill("Checked against the statement.")
    page.get_by_role("button", name=words["issue_now"]).click()
    check(page)
    sign_out(page, language)

    sign_in(page, scene.world.second_account_manager, language)
    page.goto("/desk/queues/credits-to-approve/")
    page.get_by_role("link", name=re.compile("ACME-7 · ")).first.click()
    page.get_by_role("link", name=words["approve"]).click()
    give_password(page, language)
    page.get_by_role("button", name=words["approve_now"]).click()
    page.get_by_role("link", name=words["apply"]).click()
    check(page)
    page.get_by_role("button", name=words["apply_now"]).click()
    expect(page.get_by_text(words["applied"])).to_be_visible()
    check(page)  # the contract page
    page.goto(f"/contracts/{scene.contract.pk}/incidents/{scene.rolled_back.public_id}/")
    page.get_by_role("link", name=words["exclude"]).click()
    check(page)
    page.get_by_label(words["reason"]).fill("Killed by its owner.")
    page.get_by_role("button", name=words["propose"]).click()
    expect(page.get_by_text("Killed by its owner.")).to_be_visible()
    check(page)
    page.goto("/audit/?kind=credits")
    expect(page.get_by_role("row")).not_to_have_count(0)
    check(page)
    page.goto("/desk/queues/exclusions/")
    page.get_by_role("link", name=re.compile("ACME-7 · ")).click()
    check(page)


def give_password(page: Page, language: str) -> None:
    page.locator("[name=password]").fill(PASSWORD)
    page.get_by_role("button", name=WORDS[language]["confirm"]).click()


def test_a_keyboard_reaches_the_content_and_every_link(page: Page, scene: Scene) -> None:
    sign_in(page, scene.world.owner, "en")
    page.goto(f"/contracts/{scene.contract.pk}/years/{scene.closed_year.pk}/")
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to content")
    expect(skip).to_be_focused()
    assert skip.evaluate("element => element.getBoundingClientRect().top >= 0")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    page.locator("main details").evaluate_all("all => all.forEach(details => details.open = true)")
    reached = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.getAttribute('href') || ''"))
    links = page.locator("main a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
    assert set(links) <= reached


def test_the_chosen_theme_is_kept(page: Page, scene: Scene) -> None:
    page.emulate_media(color_scheme="light")
    page.goto("/accounts/login/")
    background = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(background)
    page.get_by_role("button", name="Dark").click()
    page.goto("/accounts/login/")
    assert page.evaluate(background) != light
    expect(page.get_by_role("button", name="Dark")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Automatic").click()
    assert page.evaluate(background) == light
