"""From an event of the outbox to its deliveries, exactly once: they and the end of its waiting are one transaction."""

import json
import logging
import uuid
from collections.abc import Iterable
from typing import Any

from django.db import OperationalError, transaction
from django.db.models import QuerySet

from yoco.accounts.access import roles_from
from yoco.accounts.models import Membership, Role
from yoco.core.models import OutboxEvent, OutboxPending
from yoco.notify.facts import event_data
from yoco.notify.kinds import ROLE_FOR, TEST, TOPIC_OF, WEBHOOK_KINDS
from yoco.notify.models import Endpoint, MailDelivery, MailPreference, WebhookDelivery

log = logging.getLogger(__name__)
BATCH = 200


def events_fan_out() -> int:
    """Makes the deliveries of every event that waits; the number of events. Safe to run twice at once."""
    number = 0
    while found := _some():
        number += found
    return number


@transaction.atomic
def event_fan_out(*, event_id: uuid.UUID) -> bool:
    """Makes the deliveries of one event; False if somebody has, or is at it."""
    return _deliveries_make(_waiting().filter(pk=event_id)) > 0


@transaction.atomic
def _some() -> int:
    return _deliveries_make(_waiting().order_by("pk")[:BATCH])


def _waiting() -> QuerySet[OutboxPending]:
    """Events that nobody else is at. Their own rows are not locked: the role that serves may not change those."""
    return OutboxPending.objects.select_for_update(skip_locked=True, of=("self",)).select_related("event")


def _deliveries_make(waiting: Iterable[OutboxPending]) -> int:
    made = []
    for event in [row.event for row in waiting]:
        try:
            with transaction.atomic():
                WebhookDelivery.objects.bulk_create(_webhooks(event), ignore_conflicts=True)
                MailDelivery.objects.bulk_create(_notices(event), ignore_conflicts=True)
        except OperationalError:
            raise  # the database is gone, for all of them
        except Exception:  # one that cannot be told of waits for who mends it, and holds up no other
            log.exception("Event %s (%s) cannot be turned into deliveries; it goes on waiting.", event.pk, event.kind)
        else:
            made.append(event.pk)
    OutboxPending.objects.filter(pk__in=made).delete()
    return len(made)


def _webhooks(event: OutboxEvent) -> list[WebhookDelivery]:
    endpoints = Endpoint.objects.filter(organisation=event.organisation_id, disabled_at=None)
    if event.kind == TEST:
        endpoints = endpoints.filter(pk=event.subject_id)
    elif event.kind not in WEBHOOK_KINDS:
        return []
    # An endpoint is told of what happens after it was made.
    wanted = [
        endpoint
        for endpoint in endpoints.filter(created_at__lte=event.created_at)
        if event.kind == TEST or not endpoint.kinds or event.kind in endpoint.kinds
    ]
    body = event_body(event) if wanted else ""
    return [WebhookDelivery(event=event, endpoint=endpoint, body=body, due_at=event.created_at) for endpoint in wanted]


def event_body(event: OutboxEvent) -> str:
    """The JSON of a webhook: type, timestamp, data."""
    content: dict[str, Any] = {
        "type": event.kind,
        "timestamp": event.created_at.isoformat().replace("+00:00", "Z"),
        "data": event_data(event),
    }
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _notices(event: OutboxEvent) -> list[MailDelivery]:
    topic = TOPIC_OF.get(event.kind)
    if topic is None or event.organisation_id is None:
        return []
    muted = MailPreference.objects.filter(membership__organisation=event.organisation_id).values_list(
        "membership_id", "muted"
    )
    unwanted = {membership for membership, topics in muted if topic in topics}
    members = Membership.objects.filter(
        organisation=event.organisation_id,
        revoked_at=None,
        user__is_active=True,
        role__in=roles_from(ROLE_FOR.get(topic, Role.VIEWER)),
    ).exclude(user=event.payload.get("by"))  # who did it knows
    return [
        MailDelivery(membership=member, event=event, due_at=event.created_at)
        for member in members
        if member.pk not in unwanted
    ]
