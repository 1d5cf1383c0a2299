"""Who asks, and what a browser may do with the answer."""

import ipaddress
import re
import time
import uuid
from collections.abc import Callable
from http import HTTPStatus

import structlog
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from structlog.contextvars import bind_contextvars, clear_contextvars

from yoco.core.counters import request_count
from yoco.core.ids import uuid7
from yoco.core.logs import STATIC, route_of
from yoco.core.problem import problem_json

View = Callable[[HttpRequest], HttpResponse]

# Nothing here needs a sensor, a payment or another page's frame.
PERMISSIONS = ", ".join(
    f"{feature}=()"
    for feature in (
        "accelerometer",
        "autoplay",
        "bluetooth",
        "browsing-topics",
        "camera",
        "display-capture",
        "encrypted-media",
        "geolocation",
        "gyroscope",
        "hid",
        "idle-detection",
        "local-fonts",
        "magnetometer",
        "microphone",
        "midi",
        "payment",
        "screen-wake-lock",
        "serial",
        "usb",
        "web-share",
        "xr-spatial-tracking",
    )
)


log = structlog.get_logger(__name__)
REQUEST_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{7,63}")
# Asked for so often that a line each would hide the others, as long as they are answered.
UNTOLD = {"/healthz", "/readyz", "/metrics", STATIC}


class RequestMiddleware:
    """Gives each request a number and a line in the log: route, status, duration, and who asked.

    The number is that of a proxy in front, which is believed (`TRUSTED_PROXIES`), or a new one. The answer names it.
    """

    def __init__(self, get_response: View) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        began = time.perf_counter()
        number = request_number(request)
        clear_contextvars()
        bind_contextvars(request_id=number)
        response = self.get_response(request)
        response.headers["X-Request-Id"] = number
        route, seconds = route_of(request), time.perf_counter() - began
        request_count(method=request.method, route=route, status=response.status_code, seconds=seconds)
        told = {
            name: str(value)
            for name, value in (request.resolver_match.kwargs.items() if request.resolver_match else ())
            if isinstance(value, uuid.UUID | int)  # text may be the token of a link
        }
        (log.debug if route in UNTOLD and response.status_code < 400 else log.info)(
            "request",
            method=request.method,
            route=route,
            status=response.status_code,
            seconds=round(seconds, 4),
            client=request.META.get("REMOTE_ADDR", ""),
            **({"parameters": told} if told else {}),
        )
        return response


def request_number(request: HttpRequest) -> str:
    """The number that a trusted proxy gave the request, if it is one; else a new one."""
    given = request.META.get("HTTP_X_REQUEST_ID", "") if settings.TRUSTED_PROXIES > 0 else ""
    return given if REQUEST_ID.fullmatch(given) else str(uuid7())


class ClientAddressMiddleware:
    """REMOTE_ADDR is the client's address, also behind proxies: rate limits and the audit of sign-ins go by it.

    Each proxy appends the address of who spoke to it to X-Forwarded-For, so behind `TRUSTED_PROXIES=n` the n-th from
    the right is the first that the client cannot have written. Without that many the request did not come by the
    proxies, and the address of the connection stands.
    """

    def __init__(self, get_response: View) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if settings.TRUSTED_PROXIES > 0:
            told = request.META.get("HTTP_X_FORWARDED_FOR", "").split(",")
            if len(told) >= settings.TRUSTED_PROXIES:
                address = plain_address(told[-settings.TRUSTED_PROXIES])
                if address:
                    request.META["REMOTE_ADDR"] = address
        # Nothing behind this reads a list that the client may have begun.
        request.META.pop("HTTP_X_FORWARDED_FOR", None)
        return self.get_response(request)


def plain_address(text: str) -> str:
    """An IP address without port and brackets, in its normal form; empty if it is none."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return ""


class ApiOverHttpsMiddleware:
    """Refuses a machine that speaks HTTP where HTTPS is spoken. Redirected like a person, it would never be mended, and
    send its key in the clear each time."""

    def __init__(self, get_response: View) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if settings.HTTPS and request.path.startswith("/api/") and not request.is_secure():
            detail = "The API is served over HTTPS only. The key of this request was readable on its way: revoke it."
            return problem_json(HTTPStatus.FORBIDDEN, detail, code="https_required")
        return self.get_response(request)


class BodyLimitMiddleware:
    """Refuses a body that no page takes before any of it is read.

    Without it a form's POST, also one of nobody signed in, is read to its end, and its files fill the disk.
    """

    def __init__(self, get_response: View) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        length = request.META.get("CONTENT_LENGTH") or "0"
        if length.isdecimal() and int(length) <= settings.MAX_BODY:
            return self.get_response(request)
        detail = f"A request may have {settings.MAX_BODY // 1024 // 1024} MiB."
        if request.path.startswith("/api/"):
            return problem_json(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail, code="too_large")
        return HttpResponse(detail, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE, content_type="text/plain")


class HeadersMiddleware:
    """What Django's own middleware does not say: no sensor, no embedding by other sites, and no copy in any cache.

    Static files have a Cache-Control of their own; every other answer may be somebody's, so the default is to keep
    none.
    """

    def __init__(self, get_response: View) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        response.headers.setdefault("Permissions-Policy", PERMISSIONS)
        response.headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
        response.headers.setdefault("Cache-Control", "no-store, private")
        return response
