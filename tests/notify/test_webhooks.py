"""Webhooks as a receiver gets them: signed, each id once, repeated when it fails, given up in the end."""

import datetime
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import time_machine
from django.db import IntegrityError, connection, transaction
from django.utils import timezone
from pytest_django import Settings
from standardwebhooks import Webhook

from tests.notify.receiver import Receiver
from tests.people import World
from yoco.core.models import AuditEntry, OutboxEvent, OutboxPending
from yoco.core.outbox import outbox_record
from yoco.core.problem import DomainError
from yoco.notify import webhooks
from yoco.notify.due import tick_do
from yoco.notify.endpoints import (
    ENDPOINTS_MAX,
    dead_replay,
    delivery_replay,
    endpoint_create,
    endpoint_disable,
    endpoint_enable,
    endpoint_rotate,
    endpoint_test,
)
from yoco.notify.fan_out import event_fan_out, events_fan_out
from yoco.notify.models import DeliveryState, Endpoint, MailDelivery, WebhookAttempt, WebhookDelivery

SECOND = datetime.timedelta(seconds=1)


def endpoint(world: World, receiver: Receiver, kinds: list[str] | None = None) -> tuple[Endpoint, str]:
    return endpoint_create(
        organisation=world.organisation, name="Ledger", url=receiver.url, kinds=kinds or [], actor=world.owner
    )


def event(world: World, kind: str = "credit.amount_fixed", **changes: str) -> OutboxEvent:
    """An event that no notice tells of, about the contract."""
    payload = {"year": str(world.year.pk), "contract": str(world.contract.pk), **changes}
    return outbox_record(kind=kind, subject=world.year, organisation_id=world.organisation.pk, payload=payload)


def tick(seconds: float = 0) -> None:
    """One tick, so many seconds from now."""
    with time_machine.travel(timezone.now() + seconds * SECOND, tick=True):
        assert tick_do(as_of=timezone.now()).failed == []


def delivery_of(made: OutboxEvent) -> WebhookDelivery:
    return WebhookDelivery.objects.get(event=made)


def test_an_event_arrives_signed_and_once(world: World, receiver: Receiver) -> None:
    _made, secret = endpoint(world, receiver)
    told = event(world)
    tick()
    tick()
    assert receiver.ids() == [str(told.pk)]
    (content,) = receiver.verified(secret)
    assert content["type"] == "credit.amount_fixed"
    assert datetime.datetime.fromisoformat(content["timestamp"]) == told.created_at
    assert content["data"] == {
        "organisation": str(world.organisation.pk),
        "contract": str(world.contract.pk),
        "contract_number": "ACME-1",
        "year": str(world.year.pk),
        "year_number": 1,
        "contractyear": str(world.year.pk),
    }
    assert delivery_of(told).state == DeliveryState.DELIVERED
    assert not OutboxPending.objects.exists()


def test_an_event_that_rolls_back_is_told_to_nobody(world: World, receiver: Receiver) -> None:
    endpoint(world, receiver)
    with transaction.atomic():
        event(world)
        transaction.set_rollback(True)
    tick()
    assert receiver.requests == []


def test_only_the_organisation_and_the_kinds_that_were_chosen(world: World, receiver: Receiver) -> None:
    endpoint(world, receiver, ["credit.approved"])
    endpoint_create(
        organisation=world.stranger_contract.organisation,
        name="Theirs",
        url=receiver.url,
        kinds=[],
        actor=world.stranger,
    )
    event(world, "credit.issued")
    wanted = event(world, "credit.approved")
    event(world, "regrouping.proposed")  # stays inside
    tick()
    assert receiver.ids() == [str(wanted.pk)]


def test_a_failure_is_repeated_with_the_same_id_and_body_then_given_up(world: World, receiver: Receiver) -> None:
    receiver.answer = lambda number: 500
    _made, secret = endpoint(world, receiver)
    told = event(world)
    at = 0.0
    for wait in (*webhooks.WAITS, None):
        tick(at)
        before = len(receiver.requests)
        if wait is None:
            break
        tick(at + wait * 0.85)  # not yet: jitter takes off a tenth at most
        assert len(receiver.requests) == before
        at += wait * 1.11
    delivery = delivery_of(told)
    assert delivery.state == DeliveryState.DEAD
    assert delivery.tries == len(receiver.requests) == 10
    assert {headers["webhook-id"] for headers, _ in receiver.requests} == {str(told.pk)}
    assert len({body for _, body in receiver.requests}) == 1
    assert [row.status for row in delivery.attempts.all()] == [500] * 10
    assert delivery.attempts.all()[0].excerpt == "the receiver says 500"

    receiver.answer = lambda number: 200
    receiver.requests.clear()
    Endpoint.objects.update(open_until=None)
    delivery_replay(delivery=delivery, actor=world.owner)
    tick()
    assert receiver.ids() == [str(told.pk)]
    assert Webhook(secret).verify(receiver.requests[0][1], receiver.requests[0][0])["type"] == told.kind
    assert delivery_of(told).state == DeliveryState.DELIVERED
    assert AuditEntry.objects.filter(action="webhook.replayed", actor=world.owner).count() == 1


def test_the_circuit_opens_lets_one_probe_through_and_closes(world: World, receiver: Receiver) -> None:
    receiver.answer = lambda number: 503
    made, _secret = endpoint(world, receiver)
    told = [event(world) for _ in range(webhooks.CIRCUIT_FAILURES + 3)]
    tick()
    assert len(receiver.requests) == webhooks.CIRCUIT_FAILURES  # then nobody asked any more
    tick(30)
    assert len(receiver.requests) == webhooks.CIRCUIT_FAILURES
    tick(62)  # half open: one tries, fails, and the pause doubles
    assert len(receiver.requests) == webhooks.CIRCUIT_FAILURES + 1
    tick(62 + 100)
    assert len(receiver.requests) == webhooks.CIRCUIT_FAILURES + 1
    receiver.answer = lambda number: 200
    tick(62 + 125)
    tick(62 + 400)
    assert sorted(receiver.ids()) == sorted(str(one.pk) for one in told)
    made.refresh_from_db()
    assert (made.failures, made.failing_since, made.open_until) == (0, None, None)


@pytest.mark.parametrize("way", ["days", "gone"])
def test_an_endpoint_that_stays_broken_is_disabled_and_its_admins_are_told(
    world: World, receiver: Receiver, way: str
) -> None:
    receiver.answer = lambda number: 410 if way == "gone" else 500
    made, _secret = endpoint(world, receiver)
    first = event(world)
    tick()
    if way == "days":
        with time_machine.travel(timezone.now() + datetime.timedelta(days=6), tick=True):
            event(world)
        tick(6 * 86_400)
    made.refresh_from_db()
    assert made.disabled_because == "failing"
    assert not WebhookDelivery.objects.filter(state=DeliveryState.PENDING).exists()
    tick(6 * 86_400 + 60)
    assert MailDelivery.objects.get(event__kind="webhook.disabled").membership.user == world.owner  # no mere member

    receiver.answer = lambda number: 200
    endpoint_enable(endpoint=made, actor=world.owner)
    made.refresh_from_db()
    since = first.created_at - SECOND
    assert dead_replay(endpoint=made, since=since, actor=world.owner) == WebhookDelivery.objects.count()
    tick(6 * 86_400 + 61)
    assert str(first.pk) in receiver.ids()


def test_rotation_signs_with_both_secrets_for_a_day(world: World, receiver: Receiver) -> None:
    made, old = endpoint(world, receiver)
    made, new = endpoint_rotate(endpoint=made, actor=world.owner)
    assert old != new
    endpoint_test(endpoint=made, actor=world.owner)
    tick()
    assert receiver.verified(old) == receiver.verified(new)
    with time_machine.travel(timezone.now() + datetime.timedelta(hours=25), tick=True):
        endpoint_test(endpoint=made, actor=world.owner)
        assert tick_do(as_of=timezone.now()).failed == []
        headers, body = receiver.requests[-1]
        assert Webhook(new).verify(body, headers)["type"] == "webhook.test"
        with pytest.raises(Exception, match="No matching signature"):
            Webhook(old).verify(body, headers)


def test_a_disabled_endpoint_is_left_alone(world: World, receiver: Receiver) -> None:
    made, _secret = endpoint(world, receiver)
    told = event(world)
    events_fan_out()
    endpoint_disable(endpoint=made, actor=world.owner)
    tick()
    event(world)
    tick()
    assert receiver.requests == []
    assert delivery_of(told).state == DeliveryState.DEAD
    assert WebhookDelivery.objects.count() == 1


def test_a_redirect_is_not_followed(world: World, receiver: Receiver) -> None:
    receiver.answer = lambda number: 307
    receiver.headers = {"location": receiver.url + "/elsewhere"}
    endpoint(world, receiver)
    told = event(world)
    tick()
    assert len(receiver.requests) == 1
    assert delivery_of(told).attempts.get().status == 307
    assert delivery_of(told).state == DeliveryState.PENDING


def test_an_event_that_cannot_be_told_of_holds_up_no_other(world: World, receiver: Receiver) -> None:
    endpoint(world, receiver)
    broken = event(world, year="no id of a year")
    told = event(world)
    tick()
    assert delivery_of(told).state == DeliveryState.DELIVERED
    assert OutboxPending.objects.get().pk == broken.pk


def test_a_worker_that_was_overtaken_changes_nothing(world: World, receiver: Receiver) -> None:
    endpoint(world, receiver)
    told = event(world)
    events_fan_out()
    pk = delivery_of(told).pk
    slow = webhooks._claim(pk)
    assert slow is not None
    assert webhooks._claim(pk) is None  # somebody is at it
    with time_machine.travel(timezone.now() + 2 * webhooks._lease(), tick=True):
        webhooks.webhook_deliver(delivery_id=pk)  # the first one was given up
    webhooks._note(slow, webhooks.Outcome(timezone.now(), 5, 500, "", ""))
    delivery = delivery_of(told)
    assert delivery.state == DeliveryState.DELIVERED
    assert WebhookAttempt.objects.count() == 1


def test_the_database_holds_one_delivery_for_each_event_and_endpoint(world: World, receiver: Receiver) -> None:
    made, _secret = endpoint(world, receiver)
    told = event(world)
    assert event_fan_out(event_id=told.pk)
    assert not event_fan_out(event_id=told.pk)
    with pytest.raises(IntegrityError), transaction.atomic():
        WebhookDelivery.objects.create(event=told, endpoint=made, body="{}")


@pytest.fixture
def slow_server() -> Iterator[str]:
    """Sends a byte of its answer's head now and then, for as long as anybody listens."""
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(65_536)
            peer.sendall(b"HTTP/1.1 200 OK\r\nx: ")
            while not stop.wait(0.2):
                try:
                    peer.sendall(b"x")
                except OSError:
                    return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    stop.set()
    listener.close()
    thread.join(5)


def test_a_receiver_that_dribbles_holds_up_nobody(
    world: World, receiver: Receiver, slow_server: str, settings: Settings
) -> None:
    settings.WEBHOOK_TIMEOUT = 1.0
    endpoint_create(organisation=world.organisation, name="Slow", url=slow_server, kinds=[], actor=world.owner)
    told = event(world)
    began = time.monotonic()
    tick()
    assert time.monotonic() - began < 3
    attempt = delivery_of(told).attempts.get()
    assert attempt.status is None
    assert "Timeout" in attempt.error


def test_a_large_answer_is_cut_off(world: World, receiver: Receiver) -> None:
    receiver.answer, receiver.text = lambda number: 500, b"y" * 5000
    endpoint(world, receiver)
    told = event(world)
    tick()
    assert delivery_of(told).attempts.get().excerpt == "y" * 1000


def test_an_endpoint_that_was_disabled_needs_room_to_come_back(world: World, receiver: Receiver) -> None:
    first, _secret = endpoint(world, receiver)
    endpoint_disable(endpoint=first, actor=world.owner)
    for _ in range(ENDPOINTS_MAX):
        endpoint(world, receiver)
    with pytest.raises(DomainError, match="Disable one first"):
        endpoint_enable(endpoint=first, actor=world.owner)
    assert Endpoint.objects.filter(disabled_at=None).count() == ENDPOINTS_MAX


@pytest.mark.postgres
def test_workers_that_give_an_endpoint_up_and_a_person_who_disables_it_do_not_block_each_other(
    transactional_db: None, receiver: Receiver
) -> None:
    from tests.people import build_world

    world = build_world()
    arrived = threading.Barrier(5)
    receiver.answer = lambda number: 410
    receiver.before_answer = lambda: arrived.wait(20) and None  # so that all note their outcome at once
    made, _secret = endpoint(world, receiver)
    told = [event(world) for _ in range(4)]
    events_fan_out()
    works = [lambda pk=one.pk: webhooks.webhook_deliver(delivery_id=pk) for one in map(delivery_of, told)]
    works.append(lambda: (arrived.wait(20) and None) or endpoint_disable(endpoint=made, actor=world.owner))
    failed: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert Endpoint.objects.get().disabled_at is not None
    assert set(WebhookDelivery.objects.values_list("state", flat=True)) == {DeliveryState.DEAD}


@pytest.mark.postgres
def test_two_workers_at_once_send_it_once(transactional_db: None, receiver: Receiver) -> None:
    from tests.people import build_world

    world = build_world()
    endpoint(world, receiver)
    told = [event(world) for _ in range(6)]
    events_fan_out()
    receiver.before_answer = lambda: time.sleep(0.2)
    gate = threading.Barrier(4)
    failed: list[Any] = []

    def work() -> None:
        try:
            gate.wait(10)
            tick_do(as_of=timezone.now())
        except BaseException as error:
            failed.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    tick()
    assert sorted(receiver.ids()) == sorted(str(one.pk) for one in told)
    assert receiver.busiest > 1  # they did work at the same time


def test_secrets_are_nowhere_in_the_database(world: World, receiver: Receiver) -> None:
    made, secret = endpoint(world, receiver)
    row = json.dumps(list(Endpoint.objects.filter(pk=made.pk).values()), default=str)
    told = json.dumps(list(AuditEntry.objects.values()), default=str)
    assert secret not in row + told
    assert secret.removeprefix("whsec_") not in row + told
