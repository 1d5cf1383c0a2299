"""Every page in the reader's own language and time zone."""

from collections.abc import Callable
from zoneinfo import ZoneInfo

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils import timezone, translation
from structlog.contextvars import bind_contextvars

from yoco.accounts.models import Theme


class ReaderMiddleware:
    """After authentication: a signed-in person's language and zone win over the browser's."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        # Pages need the person anyway; a machine's call to the API has no session and costs no query.
        user = request.user
        if not user.is_authenticated:
            return self.get_response(request)
        bind_contextvars(user_id=str(user.pk))
        if user.language:
            translation.activate(user.language)
            request.LANGUAGE_CODE = translation.get_language()
        with timezone.override(ZoneInfo(user.time_zone)):
            return self.get_response(request)


def sign_on(request: HttpRequest) -> dict[str, bool]:
    """Context processor: whether any organisation signs its people in elsewhere."""
    return {"has_sign_on": bool(settings.SSO_PROVIDERS)}


def theme(request: HttpRequest) -> dict[str, str]:
    """Context processor: `light` or `dark` as the person chose, or else this browser; empty follows the device."""
    user = getattr(request, "user", None)  # there is none where a page fails before anybody is recognised
    own = user.theme if user is not None and user.is_authenticated else ""
    chosen = own or request.COOKIES.get(settings.THEME_COOKIE_NAME, "")
    return {"theme": chosen if chosen in (Theme.LIGHT, Theme.DARK) else ""}
