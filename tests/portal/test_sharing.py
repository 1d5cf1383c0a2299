"""A link to a statement: who makes it, what whoever has it can read, and when it ends."""

import datetime
import re

import pytest
import time_machine
from django.test import Client
from django.urls import reverse

from tests.portal.scene import NOW, Scene
from tests.portal.test_pages import text_of
from yoco.accounts.models import User
from yoco.core.models import AuditEntry
from yoco.guarantee.models import Statement, StatementShare


def arguments(scene: Scene) -> list[object]:
    return [scene.contract.pk, scene.closed_year.pk, 1]


def make(client: Client, person: User, scene: Scene, days: object = 30) -> tuple[int, str]:
    """The status, and the path of the link in the answer."""
    client.force_login(person)
    response = client.post(reverse("portal:statement_share", args=arguments(scene)), {"days": days})
    found = re.search(r"/shared/[^/<\s]+/", response.content.decode())
    return response.status_code, found[0] if found else ""


@pytest.fixture
def link(client: Client, scene: Scene) -> str:
    status, path = make(client, scene.world.team_mate, scene)
    assert status == 201
    client.logout()
    return path


def test_whoever_has_the_link_reads_the_statement_and_nothing_else(client: Client, scene: Scene, link: str) -> None:
    response = client.get(link)
    page = response.content.decode()
    assert response.status_code == 200
    assert Statement.objects.get(year=scene.closed_year).sha256 in page
    assert "80.00" in page
    # Nothing leads into the contract, nothing is kept by a cache or listed by a search engine.
    assert str(scene.contract.pk) not in page
    assert response.headers["X-Robots-Tag"].startswith("noindex")
    assert "no-store" in response.headers["Cache-Control"]
    assert response.headers["Referrer-Policy"] == "no-referrer"
    pdf = client.get(f"{link}statement.pdf")
    assert pdf.content.startswith(b"%PDF")
    assert pdf.headers["X-Robots-Tag"].startswith("noindex")


def test_the_token_is_not_stored_and_both_ends_are_in_the_audit_log(client: Client, scene: Scene, link: str) -> None:
    share = StatementShare.objects.get()
    token = link.split("/")[2]
    assert token not in str(vars(share))
    client.get(link)
    client.force_login(scene.world.viewer)
    statement = reverse("portal:statement", args=arguments(scene))
    assert "Martin" in (read := text_of(client, statement))
    assert "Make a link" not in read
    assert token not in read
    client.force_login(scene.world.owner)
    assert client.post(reverse("portal:share_revoke", args=[*arguments(scene), share.pk])).status_code == 302
    assert client.get(link).status_code == client.get(f"{link}statement.pdf").status_code == 404
    share.refresh_from_db()
    assert (share.opened, share.revoked_by) == (1, scene.world.owner)
    audited = AuditEntry.objects.filter(action__startswith="statement.share").order_by("at")
    assert [(entry.action, entry.actor) for entry in audited] == [
        ("statement.shared", scene.world.team_mate),
        ("statement.share_revoked", scene.world.owner),
    ]
    assert token not in str([entry.data for entry in audited])
    # A second revocation is told so and changes nothing.
    client.post(reverse("portal:share_revoke", args=[*arguments(scene), share.pk]))
    assert "revoked already" in text_of(client, statement)


def test_a_link_ends_on_its_day(client: Client, scene: Scene, link: str) -> None:
    for days, status in ((29.9, 200), (30.1, 404)):
        with time_machine.travel(NOW + datetime.timedelta(days=days)):
            assert client.get(link).status_code == status


@pytest.mark.parametrize("days", [0, 91, "x", ""])
def test_no_link_lasts_longer_than_ninety_days(client: Client, scene: Scene, days: object) -> None:
    assert make(client, scene.world.owner, scene, days) == (302, "")
    assert not StatementShare.objects.exists()


def test_it_speaks_spanish(client: Client, scene: Scene) -> None:
    client.force_login(scene.world.owner)
    assert "7 días 30 días 90 días" in text_of(client, reverse("portal:statement", args=arguments(scene)), "es")


def test_only_members_share(client: Client, scene: Scene, link: str) -> None:
    world = scene.world
    share = StatementShare.objects.get()
    for person, status in ((world.viewer, 403), (world.account_manager, 403), (world.stranger, 404)):
        assert make(client, person, scene) == (status, "")
        revoked = client.post(reverse("portal:share_revoke", args=[*arguments(scene), share.pk]))
        assert revoked.status_code == status
    share.refresh_from_db()
    assert share.is_open
    assert StatementShare.objects.count() == 1


def test_an_address_that_is_guessed_is_soon_refused(client: Client, scene: Scene) -> None:
    tries = [client.get(f"/shared/guess-{n}/").status_code for n in range(31)]
    assert tries == [404] * 30 + [429]
