"""Language, time zone and theme belong to a person, wherever they sign in."""

from django.test import Client
from django.urls import reverse

from tests.people import World
from yoco.core.models import AuditEntry


def test_what_a_person_chose_is_there_in_another_browser(client: Client, world: World) -> None:
    client.force_login(world.owner)
    chosen = {"name": "Olivia", "language": "es", "time_zone": "Europe/Madrid", "theme": "dark"}
    assert client.post(reverse("portal:settings"), chosen).status_code == 302
    elsewhere = Client(headers={"accept-language": "en"})
    assert '<html lang="es"' not in elsewhere.get("/accounts/login/").content.decode()
    elsewhere.force_login(world.owner)
    page = elsewhere.get(reverse("portal:settings")).content.decode()
    assert '<html lang="es" data-theme="dark">' in page
    assert "Europe/Madrid." in page
    assert {name: elsewhere.get(reverse("portal:settings")).context["form"][name].value() for name in chosen} == chosen
    # The first browser remembers it for the page before the person is known.
    client.post(reverse("account_logout"))
    assert '<html lang="es" data-theme="dark">' in client.get("/accounts/login/").content.decode()


def test_the_foot_of_a_page_sets_the_same(client: Client, world: World) -> None:
    client.force_login(world.owner)
    for theme, attribute in (("light", ' data-theme="light"'), ("auto", ""), ("dark", ' data-theme="dark"')):
        client.post(reverse("portal:preferences"), {"theme": theme})
        elsewhere = Client()
        elsewhere.force_login(world.owner)
        page = elsewhere.get(reverse("portal:settings")).content.decode()
        assert f'<html lang="en"{attribute}>' in page
    client.post(reverse("portal:preferences"), {"theme": "sepia", "language": "fr"})
    world.owner.refresh_from_db()
    assert (world.owner.theme, world.owner.language) == ("dark", "")
    assert AuditEntry.objects.filter(action="reader.updated", actor=world.owner).count() == 3


def test_until_a_person_has_chosen_the_browser_decides(client: Client, world: World) -> None:
    client.post(reverse("portal:preferences"), {"theme": "dark"})
    client.force_login(world.owner)
    assert 'data-theme="dark"' in client.get(reverse("portal:settings")).content.decode()
    assert client.get(reverse("portal:settings")).context["form"]["theme"].value() == "dark"
