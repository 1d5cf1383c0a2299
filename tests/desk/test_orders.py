"""Orders at the desk: entered, previewed, recorded, cancelled, with what each does to the credits."""

import uuid

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from tests.desk.test_credits import confirm, sign_in
from tests.portal.scene import Scene, issue_and_approve
from tests.portal.test_pages import QUERIES_PER_PAGE
from yoco.contracts.models import Order, OrderState
from yoco.contracts.services import order_cancel
from yoco.core.models import AuditEntry
from yoco.credits.models import LedgerTransaction
from yoco.credits.selectors import credit_balance
from yoco.credits.services import credit_apply, credits_reinstate

ENTRIES = {"number": "E-2027", "kind": "expansion", "amount": "1234567.89", "ordered_on": "2027-11-19"}


def new_url(scene: Scene) -> str:
    return reverse("desk:order_new", args=[scene.contract.pk])


def cancel_url(scene: Scene) -> str:
    return reverse("desk:order_cancel", args=[scene.order.pk])


def send(client: Client, scene: Scene, decision: str, **changes: str) -> tuple[int, str]:
    fields = {**ENTRIES, "decision": decision, "key": str(uuid.uuid4()), **changes}
    answer = client.post(new_url(scene), fields)
    return answer.status_code, answer.content.decode().replace("\xa0", " ")


@pytest.fixture
def desk(client: Client, scene: Scene) -> Client:
    sign_in(client, scene.world.account_manager)
    return client


def waiting_for_an_order(scene: Scene) -> None:
    """The credit is approved, and the only order that could fix its amount is cancelled."""
    order_cancel(order=scene.order, actor=scene.world.account_manager, reason="Never signed.")
    issue_and_approve(scene)
    credits_reinstate(order_id=scene.order.pk, actor=None)
    assert credit_balance(credit=scene.credit).granted == 0


def test_an_order_is_entered_previewed_and_recorded_with_the_credit_that_waited(desk: Client, scene: Scene) -> None:
    waiting_for_an_order(scene)
    assert "Show what it will post" in desk.get(new_url(scene)).content.decode()
    status, page = send(desk, scene, "preview")
    assert status == 200
    assert "US$1,234,567.89" in page
    assert "US$308,641.97" in page  # a quarter, rounded on the cent
    assert "Record the order</button>" in page
    assert not Order.objects.filter(number="E-2027").exists()

    assert send(desk, scene, "confirm")[0] == 302
    order = Order.objects.get(number="E-2027")
    assert (order.amount_minor, order.kind, order.state) == (123_456_789, "expansion", OrderState.RECORDED)
    assert credit_balance(credit=scene.credit).available == 30_864_197
    entry = AuditEntry.objects.get(action="order.recorded", subject_id=str(order.pk))
    assert entry.actor_id == scene.world.account_manager.pk


def test_a_preview_leads_back_to_the_entries(desk: Client, scene: Scene) -> None:
    _, page = send(desk, scene, "change")
    assert 'value="1234567.89"' in page
    assert "Show what it will post" in page
    assert not Order.objects.filter(number="E-2027").exists()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"number": ""}, "This field is required."),
        ({"number": "R-2027"}, "There is already an order R-2027."),
        ({"amount": "0"}, "greater than or equal to 0.01"),
        ({"amount": "1.005"}, "no more than 2 decimal places"),
        ({"amount": "9" * 16}, "no more than 15 digits"),
        ({"amount": "NaN"}, "Enter a number."),
        ({"kind": "gift"}, "Select a valid choice."),
        ({"ordered_on": "2027-02-30"}, "Enter a valid date."),
    ],
)
def test_an_order_that_cannot_be_is_refused_at_preview_and_at_confirmation(
    desk: Client, scene: Scene, changes: dict[str, str], says: str
) -> None:
    for decision in ("preview", "confirm"):
        status, page = send(desk, scene, decision, **changes)
        assert status in (200, 409)
        assert says in page
        assert "Record the order</button>" not in page
    assert Order.objects.get() == scene.order


def test_recording_twice_records_once(desk: Client, scene: Scene) -> None:
    assert [send(desk, scene, "confirm")[0] for _ in range(2)] == [302, 409]
    assert Order.objects.filter(number="E-2027").count() == 1


def test_a_cancelled_order_gives_its_credit_back_in_the_same_step(desk: Client, scene: Scene) -> None:
    issue_and_approve(scene)
    credit_apply(order_id=scene.order.pk, actor=scene.world.account_manager)
    preview = desk.get(cancel_url(scene)).content.decode()
    assert "-US$1,200,000.00" in preview
    assert Order.objects.get().state == OrderState.RECORDED

    assert confirm(desk, cancel_url(scene), reason=" ") == 200
    assert confirm(desk, cancel_url(scene), reason="The customer withdrew.") == 302
    assert Order.objects.get().state == OrderState.CANCELLED
    assert credit_balance(credit=scene.credit).applied == 0
    assert LedgerTransaction.objects.filter(kind="reinstate", actor=scene.world.account_manager).count() == 1
    assert AuditEntry.objects.get(action="order.cancelled").data["reason"] == "The customer withdrew."
    assert confirm(desk, cancel_url(scene), reason="Again.") == 409


def test_orders_ask_for_the_password_and_are_nothing_for_customers(client: Client, scene: Scene) -> None:
    client.force_login(scene.world.account_manager)
    assert send(client, scene, "confirm")[0] == confirm(client, cancel_url(scene), reason="No.") == 302
    for person in (scene.world.owner, scene.world.stranger):
        sign_in(client, person)
        assert send(client, scene, "confirm")[0] == confirm(client, cancel_url(scene), reason="No.") == 404
    assert Order.objects.get().state == OrderState.RECORDED


def test_the_form_takes_few_queries(
    desk: Client, scene: Scene, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_max_num_queries(QUERIES_PER_PAGE):
        assert desk.get(new_url(scene)).status_code == 200
