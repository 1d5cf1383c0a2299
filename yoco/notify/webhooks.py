"""Delivering webhooks: claim, send, note what came of it. docs/webhooks.md says what a receiver may rely on."""

import datetime
import logging
import uuid
from dataclasses import dataclass

import httpcore
from django.conf import settings
from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from yoco.accounts.models import User
from yoco.core.audit import audit_record
from yoco.core.outbox import outbox_record
from yoco.notify.attempts import SECOND, jittered
from yoco.notify.models import DeliveryState, Endpoint, WebhookAttempt, WebhookDelivery
from yoco.notify.outbound import Answer, Refused, post
from yoco.notify.secrets import SecretLost, signatures

log = logging.getLogger(__name__)

# Seconds from one attempt to the next, as the Standard Webhooks specification proposes: about three days in all.
WAITS = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
CIRCUIT_FAILURES = 10
CIRCUIT_WAIT = (60, 3600)  # seconds: the first pause of a circuit that opens, and the longest
DISABLE_AFTER = datetime.timedelta(days=5)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one attempt; a status of 2xx is a success."""

    at: datetime.datetime
    milliseconds: int
    status: int | None
    error: str
    excerpt: str

    @property
    def delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


def deliveries_due(*, as_of: datetime.datetime) -> QuerySet[WebhookDelivery]:
    """What may be sent now, the longest waiting first: pending, due, and its endpoint's circuit not open."""
    circuit = Q(endpoint__open_until=None) | Q(endpoint__open_until__lte=as_of)
    return WebhookDelivery.objects.filter(
        circuit, state=DeliveryState.PENDING, due_at__lte=as_of, endpoint__disabled_at=None
    ).order_by("due_at", "pk")


def webhook_deliver(*, delivery_id: uuid.UUID) -> float | None:
    """Sends one delivery if it is due and nobody else is at it. Seconds until it wants the next attempt, if any."""
    delivery = _claim(delivery_id)
    if delivery is None:
        return None
    outcome = _send(delivery)
    return _note(delivery, outcome)


def _lease() -> datetime.timedelta:
    """How long a claim keeps others away: an attempt, which ends by its own deadline, takes at most half of it."""
    return datetime.timedelta(seconds=2 * settings.WEBHOOK_TIMEOUT)


@transaction.atomic
def _claim(delivery_id: uuid.UUID) -> WebhookDelivery | None:
    now = timezone.now()
    due = deliveries_due(as_of=now).filter(pk=delivery_id).select_related("endpoint")
    delivery = due.select_for_update(of=("self",), skip_locked=True).first()
    if delivery is None:
        return None
    endpoint = delivery.endpoint
    if endpoint.open_until is not None:
        # The circuit is half open: only one delivery tries, and the others wait for what it finds. Nobody waits for
        # the endpoint here, because everybody else locks it before its deliveries.
        probes = Endpoint.objects.filter(pk=endpoint.pk, open_until=endpoint.open_until)
        if probes.select_for_update(no_key=True, skip_locked=True).first() is None:
            return None
        probes.update(open_until=now + _lease())
    delivery.due_at = now + _lease()
    delivery.claims += 1
    delivery.tries += 1
    delivery.save(update_fields=["due_at", "claims", "tries"])
    return delivery


def _send(delivery: WebhookDelivery) -> Outcome:
    at = timezone.now()
    answer, error = None, ""
    try:
        headers = {
            "content-type": "application/json",
            "user-agent": "YOCO-Webhooks/1",
            "webhook-id": str(delivery.event_id),
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": signatures(
                delivery.endpoint, message_id=str(delivery.event_id), at=at, body=delivery.body
            ),
        }
        answer = post(
            delivery.endpoint.url, headers=headers, body=delivery.body.encode(), timeout=settings.WEBHOOK_TIMEOUT
        )
    except (Refused, SecretLost) as refusal:
        error = str(refusal)
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError, ValueError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    return _outcome(at, answer, error)


def _outcome(at: datetime.datetime, answer: Answer | None, error: str) -> Outcome:
    took = (timezone.now() - at) // datetime.timedelta(milliseconds=1)
    return Outcome(
        at=at,
        milliseconds=max(0, took),
        status=answer.status if answer else None,
        error=error[:300],
        excerpt=answer.excerpt if answer else "",
    )


@transaction.atomic
def _note(delivery: WebhookDelivery, outcome: Outcome) -> float | None:
    """Writes the outcome unless another worker has taken over meanwhile."""
    endpoint = Endpoint.objects.select_for_update(no_key=True).get(pk=delivery.endpoint_id)
    held = WebhookDelivery.objects.select_for_update().filter(
        pk=delivery.pk, claims=delivery.claims, state=DeliveryState.PENDING
    )
    if not held.exists():
        log.warning("Delivery %s was taken over; this outcome is dropped", delivery.pk)
        return None
    WebhookAttempt.objects.create(
        delivery=delivery,
        at=outcome.at,
        milliseconds=outcome.milliseconds,
        status=outcome.status,
        error=outcome.error,
        excerpt=outcome.excerpt,
    )
    now, wait = timezone.now(), None
    if outcome.delivered:
        held.update(state=DeliveryState.DELIVERED, ended_at=now)
        _endpoint_well(endpoint)
        return None
    if outcome.status == 410 or delivery.tries > len(WAITS):
        held.update(state=DeliveryState.DEAD, ended_at=now)
    else:
        wait = jittered(WAITS[delivery.tries - 1])
        held.update(due_at=now + wait * SECOND)
    _endpoint_failed(endpoint, gone=outcome.status == 410)
    return wait


def _endpoint_well(endpoint: Endpoint) -> None:
    if endpoint.failures or endpoint.failing_since or endpoint.open_until:
        endpoint.failures, endpoint.failing_since, endpoint.open_until = 0, None, None
        endpoint.save(update_fields=["failures", "failing_since", "open_until"])


def _endpoint_failed(endpoint: Endpoint, *, gone: bool) -> None:
    """Counts the failure, opens the circuit after several in a row, and gives an endpoint up that fails for days."""
    now = timezone.now()
    endpoint.failures += 1
    endpoint.failing_since = endpoint.failing_since or now
    if endpoint.failures >= CIRCUIT_FAILURES:
        first, longest = CIRCUIT_WAIT
        pause = min(longest, first * 2 ** min(endpoint.failures - CIRCUIT_FAILURES, 10))
        endpoint.open_until = now + pause * SECOND
    endpoint.save(update_fields=["failures", "failing_since", "open_until"])
    if endpoint.disabled_at is None and (gone or now - endpoint.failing_since >= DISABLE_AFTER):
        endpoint_end(endpoint, because="failing", actor=None)


def endpoint_end(endpoint: Endpoint, *, because: str, actor: User | None) -> None:
    """Disables the endpoint; what still waits for it is given up and can be replayed. Inside a transaction."""
    now = timezone.now()
    if Endpoint.objects.filter(pk=endpoint.pk, disabled_at=None).update(disabled_at=now, disabled_because=because) != 1:
        return
    waiting = WebhookDelivery.objects.filter(endpoint=endpoint, state=DeliveryState.PENDING)
    waiting.update(state=DeliveryState.DEAD, ended_at=now, claims=F("claims") + 1)
    audit_record(
        action="webhook.disabled",
        actor=actor,
        subject=endpoint,
        organisation_id=endpoint.organisation_id,
        data={"because": because, "name": endpoint.name},
    )
    if because == "failing":
        outbox_record(
            kind="webhook.disabled",
            subject=endpoint,
            organisation_id=endpoint.organisation_id,
            payload={"endpoint": str(endpoint.pk)},
        )
