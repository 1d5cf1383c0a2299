"""`GET /metrics` for Prometheus."""

import ipaddress
import os
import secrets
from http import HTTPStatus

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from yoco.core.counters import COUNTED
from yoco.watch.state import StateCollector


@never_cache
@require_GET
def metrics(request: HttpRequest) -> HttpResponse:
    """What all web processes counted, and the state of the database and the queue.

    For whoever has METRICS_TOKEN or asks from one of METRICS_ALLOWED_NETWORKS; where neither is set, for nobody.
    """
    if not settings.METRICS_TOKEN and not settings.METRICS_ALLOWED_NETWORKS:
        raise Http404
    if not _may_read(request):
        refused = HttpResponse(
            "Send METRICS_TOKEN as a bearer token, or ask from one of METRICS_ALLOWED_NETWORKS.\n",
            status=HTTPStatus.UNAUTHORIZED,
            content_type="text/plain",
        )
        refused["WWW-Authenticate"] = "Bearer"
        return refused
    registry = CollectorRegistry()
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    else:
        registry.register(COUNTED)
    registry.register(StateCollector())
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


def _may_read(request: HttpRequest) -> bool:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    token: str = settings.METRICS_TOKEN
    if token and scheme.lower() == "bearer" and secrets.compare_digest(given.encode(), token.encode()):
        return True
    try:
        address = ipaddress.ip_address(request.META.get("REMOTE_ADDR", ""))
    except ValueError:  # over a Unix socket there is none
        return False
    return any(address in network for network in settings.METRICS_ALLOWED_NETWORKS)
