"""The desk's pages of agreements, orders, imports and regrouping in Debian's chromium, as `tests.portal` does it for
the customer's: both languages, phone and desktop, light and dark."""

from collections.abc import Iterator

import pytest
import time_machine
from django.urls import reverse
from playwright.sync_api import Page, expect

from tests.desk.test_restating import exclude_until_met
from tests.portal.scene import NOW, Scene, build_scene, issue_and_approve
from tests.portal.test_access import PAGES as ARGUMENTS
from tests.portal.test_in_browser import WIDTHS, check, give_password, sign_in, sign_out
from yoco.guarantee.models import Proposal

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

WORDS = {
    "en": {
        "new_version": "New version of the terms",
        "effect": "Takes effect on",
        "threshold": "Share that must be resolved without loss",
        "reason": "Reason",
        "show": "Show what changes",
        "put": "Propose the version",
        "proposed": "It waits for a second person.",
        "confirm": "Confirm it",
        "recorded": "The new version of the terms is recorded.",
        "wrong": "Some entries cannot be right.",
        "terms": "All terms and their versions",
        "versions": "Versions and what each changed",
    },
    "es": {
        "new_version": "Nueva versión de las condiciones",
        "effect": "Entra en vigor el",
        "threshold": "Proporción que debe resolverse sin pérdida",
        "reason": "Motivo",
        "show": "Mostrar qué cambia",
        "put": "Proponer la versión",
        "proposed": "Espera a una segunda persona.",
        "confirm": "Confirmar",
        "recorded": "La nueva versión de las condiciones está registrada.",
        "wrong": "Algunos datos no pueden ser correctos.",
        "terms": "Todas las condiciones y sus versiones",
        "versions": "Versiones y qué cambió cada una",
    },
}
# Pages that no other test in a browser opens.
PAGES = [
    "desk:contract_new",
    "desk:guarantee_new",
    "desk:contract_end",
    "desk:year_fees",
    "desk:order_new",
    "desk:order_cancel",
    "desk:import",
    "desk:import_file",
    "desk:merge",
    "desk:split",
    "desk:revert",
    "desk:dispute",
    "desk:exclusion_withdraw",
    "desk:restate",
    "desk:queue",
]


@pytest.fixture
def scene(transactional_db: None) -> Iterator[Scene]:
    with time_machine.travel(NOW, tick=True):
        yield build_scene()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("language", WORDS)
def test_a_version_of_the_terms_goes_from_the_desk_to_the_customer(
    page: Page, scene: Scene, language: str, width: str
) -> None:
    words = WORDS[language]
    page.set_viewport_size({"width": WIDTHS[width], "height": 800})
    sign_in(page, scene.world.account_manager, language)
    page.goto(reverse("desk:contract", args=[scene.contract.pk]))
    check(page)
    page.get_by_role("link", name=words["new_version"]).click()
    give_password(page, language)
    check(page)
    page.get_by_label(words["effect"]).fill("2028-09-01")
    page.get_by_label(words["reason"], exact=True).fill("The customer agreed.")
    page.get_by_label(words["threshold"]).fill("ninety")
    page.get_by_role("button", name=words["show"]).click()
    expect(page.get_by_text(words["wrong"])).to_be_visible()
    check(page)
    page.get_by_label(words["threshold"]).fill("95/100")
    page.get_by_role("button", name=words["show"]).click()
    expect(page.get_by_text("90/100")).to_be_visible()
    check(page)
    page.get_by_role("button", name=words["put"]).click()
    expect(page.get_by_text(words["proposed"]).first).to_be_visible()
    check(page)
    sign_out(page, language)

    sign_in(page, scene.world.second_account_manager, language)
    page.goto(reverse("desk:proposal", args=[Proposal.objects.get().pk]))
    give_password(page, language)
    check(page)
    page.get_by_label(words["reason"], exact=True).fill("As agreed.")
    page.get_by_role("button", name=words["confirm"]).click()
    expect(page.get_by_text(words["recorded"])).to_be_visible()
    check(page)
    sign_out(page, language)

    sign_in(page, scene.world.viewer, language)
    page.goto(reverse("portal:year", args=[scene.contract.pk, scene.running_year.pk]))
    page.get_by_role("link", name=words["terms"]).click()
    expect(page.get_by_role("heading", name=words["versions"])).to_be_visible()
    expect(page.get_by_role("cell", name="95/100")).to_be_visible()
    check(page)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("language", WORDS)
def test_every_page_of_the_desk_is_accessible(page: Page, scene: Scene, language: str, width: str) -> None:
    page.set_viewport_size({"width": WIDTHS[width], "height": 800})
    sign_in(page, scene.world.account_manager, language)
    page.goto(reverse("desk:contract_new"))
    give_password(page, language)
    for name in PAGES:
        arguments, _ = ARGUMENTS[name]
        page.goto(reverse(name, args=arguments(scene)))
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        check(page)
    # A preview with moves, an effect on the credit and postings.
    issue_and_approve(scene)
    exclude_until_met(scene)
    page.goto(reverse("desk:restate", args=[scene.contract.pk, scene.closed_year.pk]))
    page.get_by_label(WORDS[language]["reason"], exact=True).fill("So it was.")
    page.get_by_role("button", name=WORDS[language]["show"]).click()
    expect(page.get_by_text("R-2027")).to_be_visible()
    check(page)


def test_a_keyboard_alone_proposes_the_end_of_a_contract(page: Page, scene: Scene) -> None:
    sign_in(page, scene.world.account_manager, "en")
    page.goto(reverse("desk:contract_end", args=[scene.contract.pk]))
    give_password(page, "en")
    last_day = page.get_by_label("Last day of the contract")
    last_day.fill("2027-12-31")
    last_day.press("Tab")
    for _ in range(3):  # the parts of a date
        if page.evaluate("document.activeElement.name") == "reason":
            break
        page.keyboard.press("Tab")
    page.keyboard.type("Insolvency.")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="What changes")).to_be_visible()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.value") == "confirm":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_text("The early end is proposed.")).to_be_visible()
    assert Proposal.objects.get().said == {"ends_on": "2028-01-01"}
