"""What an organisation's administrators do with endpoints: make, change, rotate, disable, test, replay."""

import datetime
import uuid
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from yoco.accounts.models import Organisation, User
from yoco.core.audit import audit_record
from yoco.core.models import OutboxEvent
from yoco.core.outbox import outbox_record
from yoco.core.problem import DomainError
from yoco.notify.kinds import TEST, WEBHOOK_KINDS
from yoco.notify.models import DeliveryState, Endpoint, WebhookDelivery, seed_new
from yoco.notify.outbound import Refused, url_check
from yoco.notify.secrets import secret_text
from yoco.notify.webhooks import endpoint_end

ENDPOINTS_MAX = 20
OVERLAP = datetime.timedelta(hours=24)


@transaction.atomic
def endpoint_create(
    *, organisation: Organisation, name: str, url: str, kinds: list[str], actor: User
) -> tuple[Endpoint, str]:
    """A new endpoint and its signing secret, which is shown once.

    Raises DomainError for a URL that is never called, an unknown kind, and beyond the number that one may have.
    """
    _check(url, kinds)
    _room(organisation.pk)
    endpoint = Endpoint.objects.create(
        organisation=organisation,
        name=name,
        url=url,
        kinds=kinds,
        pepper=max(settings.KEY_PEPPERS),
        created_by=actor,
    )
    _audit("webhook.created", endpoint, actor, name=name, url=url, kinds=kinds)
    return endpoint, secret_text(endpoint)


@transaction.atomic
def endpoint_change(*, endpoint: Endpoint, name: str, url: str, kinds: list[str], actor: User) -> None:
    """Another name, URL or choice of events. Raises DomainError as endpoint_create does."""
    _check(url, kinds)
    Endpoint.objects.filter(pk=endpoint.pk).update(name=name, url=url, kinds=kinds)
    _audit("webhook.changed", endpoint, actor, name=name, url=url, kinds=kinds)


@transaction.atomic
def endpoint_rotate(*, endpoint: Endpoint, actor: User) -> tuple[Endpoint, str]:
    """A new secret, shown once; for 24 hours every delivery is signed with both."""
    held = Endpoint.objects.select_for_update().get(pk=endpoint.pk)
    held.old_seed, held.old_pepper, held.old_until = held.seed, held.pepper, timezone.now() + OVERLAP
    held.seed, held.pepper = seed_new(), max(settings.KEY_PEPPERS)
    held.save(update_fields=["seed", "pepper", "old_seed", "old_pepper", "old_until"])
    _audit("webhook.secret_rotated", held, actor, name=held.name)
    return held, secret_text(held)


@transaction.atomic
def endpoint_disable(*, endpoint: Endpoint, actor: User) -> None:
    """Nothing is sent to it any more; what was waiting is given up and can be replayed."""
    endpoint_end(endpoint, because="person", actor=actor)


@transaction.atomic
def endpoint_enable(*, endpoint: Endpoint, actor: User) -> None:
    """Takes a disabled endpoint into use again, with its circuit closed. Raises DomainError beyond the number."""
    _room(endpoint.organisation_id)
    found = Endpoint.objects.filter(pk=endpoint.pk).exclude(disabled_at=None)
    if found.update(disabled_at=None, disabled_because="", failures=0, failing_since=None, open_until=None):
        _audit("webhook.enabled", endpoint, actor, name=endpoint.name)


@transaction.atomic
def endpoint_test(*, endpoint: Endpoint, actor: User) -> OutboxEvent:
    """Sends an event of kind `webhook.test` to this endpoint alone, by the same road as every other."""
    _live(endpoint)
    _audit("webhook.tested", endpoint, actor, name=endpoint.name)
    return outbox_record(
        kind=TEST,
        subject=endpoint,
        organisation_id=endpoint.organisation_id,
        payload={"endpoint": str(endpoint.pk)},
    )


@transaction.atomic
def delivery_replay(*, delivery: WebhookDelivery, actor: User) -> None:
    """Sends one ended delivery again: same id, same body, a fresh signature. Raises DomainError while it waits."""
    _live(delivery.endpoint)
    ended = WebhookDelivery.objects.filter(pk=delivery.pk).exclude(state=DeliveryState.PENDING)
    if _again(ended) != 1:
        raise DomainError(_("This delivery is still waiting to be sent."), code="not_ended")
    _audit("webhook.replayed", delivery.endpoint, actor, delivery=str(delivery.pk))


@transaction.atomic
def dead_replay(*, endpoint: Endpoint, since: datetime.datetime, actor: User) -> int:
    """Sends everything again that was given up and made since; the number of deliveries."""
    _live(endpoint)
    number = _again(WebhookDelivery.objects.filter(endpoint=endpoint, state=DeliveryState.DEAD, created_at__gte=since))
    _audit("webhook.dead_replayed", endpoint, actor, since=since.isoformat(), number=number)
    return number


def _again(deliveries: QuerySet[WebhookDelivery]) -> int:
    return deliveries.update(
        state=DeliveryState.PENDING, ended_at=None, tries=0, claims=F("claims") + 1, due_at=timezone.now()
    )


def _room(organisation_id: uuid.UUID) -> None:
    """Raises DomainError if the organisation has all the endpoints that it may have; others wait for this one."""
    Organisation.objects.select_for_update(no_key=True).get(pk=organisation_id)
    if Endpoint.objects.filter(organisation=organisation_id, disabled_at=None).count() >= ENDPOINTS_MAX:
        raise DomainError(
            _("There are %(n)s endpoints already. Disable one first.") % {"n": ENDPOINTS_MAX}, code="too_many"
        )


def _live(endpoint: Endpoint) -> None:
    if endpoint.disabled_at is not None:
        raise DomainError(_("This endpoint is disabled. Enable it first."), code="endpoint_disabled")


def _check(url: str, kinds: list[str]) -> None:
    try:
        url_check(url)
    except Refused as refusal:
        raise DomainError(str(refusal), code="url_refused") from None
    if unknown := set(kinds) - set(WEBHOOK_KINDS):
        raise DomainError(
            _("There is no event of kind %(kind)s.") % {"kind": min(unknown)},
            code="unknown_kind",
        )


def _audit(action: str, endpoint: Endpoint, actor: User, **data: Any) -> None:
    audit_record(action=action, actor=actor, subject=endpoint, organisation_id=endpoint.organisation_id, data=data)
