"""Lists for the pages of webhooks."""

from django.db.models import Count, OuterRef, Q, QuerySet, Subquery

from yoco.accounts.models import Organisation
from yoco.notify.models import DeliveryState, Endpoint, WebhookAttempt, WebhookDelivery


def endpoints_of(*, organisation: Organisation) -> QuerySet[Endpoint]:
    """An organisation's endpoints with `waiting` and `dead`: how many deliveries wait or were given up."""
    return Endpoint.objects.filter(organisation=organisation).annotate(
        waiting=Count("deliveries", filter=Q(deliveries__state=DeliveryState.PENDING)),
        dead=Count("deliveries", filter=Q(deliveries__state=DeliveryState.DEAD)),
    )


def deliveries_of(*, endpoint: Endpoint, state: str = "") -> QuerySet[WebhookDelivery]:
    """An endpoint's deliveries, the newest first, each with the latest attempt's `status`, `error` and their number."""
    latest = WebhookAttempt.objects.filter(delivery=OuterRef("pk")).order_by("-id")
    rows = WebhookDelivery.objects.filter(endpoint=endpoint).select_related("event").order_by("-created_at", "-pk")
    if state:
        rows = rows.filter(state=state)
    return rows.annotate(
        status=Subquery(latest.values("status")[:1]),
        error=Subquery(latest.values("error")[:1]),
        number=Count("attempts"),
    )
