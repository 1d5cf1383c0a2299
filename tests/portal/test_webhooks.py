"""Webhooks through their pages: made, tested, rotated, replayed; never another tenant's."""

import re

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, Settings
from standardwebhooks import Webhook

from tests.notify.conftest import receiver  # noqa: F401  (a fixture)
from tests.notify.receiver import Receiver
from tests.people import World, sign_in_confirmed
from tests.portal.test_pages import QUERIES_PER_PAGE, text_of
from yoco.core.models import AuditEntry
from yoco.notify.due import tick_do
from yoco.notify.models import Endpoint, WebhookDelivery


def make(client: Client, world: World, url: str, kinds: list[str] | None = None) -> str:
    """Makes an endpoint by its form; its secret, as the page shows it."""
    new = reverse("portal:webhook_new", args=[world.organisation.pk])
    answer = client.post(new, {"name": "Ledger", "url": url, "kinds": kinds or []})
    assert answer.status_code == 201
    assert "no-store" in answer["cache-control"]
    found = re.search(r"whsec_[0-9A-Za-z+/=]+", answer.content.decode())
    assert found is not None
    return found[0]


def test_an_endpoint_from_its_first_test_to_its_replay(
    client: Client,
    world: World,
    receiver: Receiver,  # noqa: F811
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    sign_in_confirmed(client, world.owner)
    secret = make(client, world, receiver.url)
    made = Endpoint.objects.get()
    arguments = [world.organisation.pk, made.pk]
    page = reverse("portal:webhook", args=arguments)
    assert secret not in client.get(page).content.decode()

    receiver.answer = lambda number: 500 if number == 1 else 204
    client.post(reverse("portal:webhook_test", args=arguments))
    tick_do(as_of=timezone.now())
    with django_assert_max_num_queries(QUERIES_PER_PAGE):
        text = text_of(client, page)
    assert "webhook.test" in text
    assert "Waiting" in text
    delivery = WebhookDelivery.objects.get()
    one = reverse("portal:webhook_delivery", args=[*arguments, delivery.pk])
    with django_assert_max_num_queries(QUERIES_PER_PAGE):
        text = text_of(client, one)
    assert "500 the receiver says 500" in text
    assert str(delivery.event_id) in text

    # Given up by disabling; enabled again, and replayed from the page.
    switch = reverse("portal:webhook_switch", args=arguments)
    client.post(switch, {"state": "off"})
    assert "Nothing is sent to it." in text_of(client, page)
    client.post(switch, {"state": "on"})
    rotated = client.post(reverse("portal:webhook_rotate", args=arguments))
    new_secret = re.search(r"whsec_[0-9A-Za-z+/=]+", rotated.content.decode())
    assert new_secret is not None
    client.post(reverse("portal:webhook_replay", args=arguments), {"days": "7"})
    tick_do(as_of=timezone.now())
    assert receiver.ids() == [str(delivery.event_id)]
    headers, body = receiver.requests[-1]
    for text in (secret, new_secret[0]):
        assert Webhook(text).verify(body, headers)["type"] == "webhook.test"
    assert "Delivered" in text_of(client, one)
    client.post(reverse("portal:webhook_delivery_replay", args=[*arguments, delivery.pk]))
    tick_do(as_of=timezone.now())
    assert receiver.ids() == [str(delivery.event_id)] * 2
    told = AuditEntry.objects.filter(actor=world.owner, action__startswith="webhook.").order_by("at", "id")
    assert list(told.values_list("action", flat=True)) == [
        "webhook.created",
        "webhook.tested",
        "webhook.disabled",
        "webhook.enabled",
        "webhook.secret_rotated",
        "webhook.dead_replayed",
        "webhook.replayed",
    ]


@pytest.mark.parametrize("url", ["https://127.0.0.1/", "http://hooks.example.com/", "https://169.254.169.254/latest"])
def test_a_forbidden_address_is_refused_with_the_reason(client: Client, world: World, url: str) -> None:
    sign_in_confirmed(client, world.owner)
    new = reverse("portal:webhook_new", args=[world.organisation.pk])
    answer = client.post(new, {"name": "Ledger", "url": url, "kinds": []})
    assert answer.status_code == 200
    assert "not on the public internet" in answer.content.decode() or "Only https" in answer.content.decode()
    assert not Endpoint.objects.exists()


def test_only_those_who_manage_the_organisation(client: Client, world: World, settings: Settings) -> None:
    sign_in_confirmed(client, world.owner)
    make(client, world, "https://hooks.example.com/")
    made = Endpoint.objects.get()
    arguments = [world.organisation.pk, made.pk]
    posts = ["webhook_rotate", "webhook_switch", "webhook_test", "webhook_replay", "webhook_edit"]
    before = list(Endpoint.objects.values())
    people = [(world.team_mate, 403), (world.viewer, 403), (world.account_manager, 403), (world.stranger, 404)]
    for person, status in people:
        sign_in_confirmed(client, person)
        assert [client.post(reverse(f"portal:{name}", args=arguments)).status_code for name in posts] == [status] * 5
    # By one's own organisation one does not reach another's endpoint either.
    sign_in_confirmed(client, world.stranger)
    theirs = [world.stranger_contract.organisation_id, made.pk]
    assert [client.post(reverse(f"portal:{name}", args=theirs)).status_code for name in posts] == [404] * 5
    assert list(Endpoint.objects.values()) == before


def test_where_a_webhook_goes_is_changed_by_who_has_confirmed_a_moment_ago(client: Client, world: World) -> None:
    sign_in_confirmed(client, world.owner)
    make(client, world, "https://hooks.example.com/")
    made = Endpoint.objects.get()
    thief = Client()
    thief.force_login(world.owner)
    path = reverse("portal:webhook_edit", args=[world.organisation.pk, made.pk])
    answer = thief.post(path, {"name": "Ledger", "url": "https://thief.example.com/"})
    assert (answer.status_code, "reauthenticate" in answer["Location"]) == (302, True)
    made.refresh_from_db()
    assert made.url == "https://hooks.example.com/"
