"""Two watches over signed-in people: which sessions are live, and who at the vendor lacks a second factor."""

import datetime
from collections.abc import Callable
from http import HTTPStatus

from allauth.mfa.utils import is_mfa_enabled
from allauth.usersessions.models import UserSession
from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from yoco.accounts.models import User
from yoco.accounts.sessions import sessions_forget_dead
from yoco.core.problem import problem_json

View = Callable[[HttpRequest], HttpResponse]

NOTED_AT = "noted_at"  # in the session: when its row was last written, Unix seconds
NOTE_EVERY = datetime.timedelta(minutes=5)  # a page costs no write in between


def session_note(request: HttpRequest) -> None:
    """Writes down that this session is in use now, from where."""
    request.session[NOTED_AT] = int(timezone.now().timestamp())
    UserSession.objects.create_from_request(request)


class SessionNotesMiddleware:
    """Notes each session at sign-in and, while it is used, every five minutes: browser, address, last seen."""

    def __init__(self, get_response: View) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        key = request.session.session_key
        response = self.get_response(request)
        # The API leaves a key here, or nobody at all.
        if not isinstance(request.user, User):
            return response
        noted_at = request.session.get(NOTED_AT)
        # The key changes at sign-in and when the password does.
        begun = request.session.session_key != key
        due = noted_at is not None and timezone.now().timestamp() - noted_at >= NOTE_EVERY.total_seconds()
        if begun:
            sessions_forget_dead(user=request.user)
        if begun or due:
            session_note(request)
        return response


class SecondFactorMiddleware:
    """Where `REQUIRE_MFA_FOR_DESK` is on, an account manager without a second factor can only set one up."""

    def __init__(self, get_response: View) -> None:
        self.get_response = get_response
        self.open = (reverse("account_logout").removesuffix("logout/"), reverse("portal:preferences"))

    def __call__(self, request: HttpRequest) -> HttpResponse:
        user = request.user
        if (
            not settings.REQUIRE_MFA_FOR_DESK
            or not user.is_authenticated
            or not user.is_account_manager
            or request.path.startswith(self.open)
            or is_mfa_enabled(user)
        ):
            return self.get_response(request)
        if request.path.startswith("/api/"):
            detail = "Account managers set up a second factor before they work: see /accounts/2fa/."
            return problem_json(HTTPStatus.FORBIDDEN, detail, code="second_factor_required")
        messages.warning(request, _("Set up a second factor first; the desk opens as soon as one is in place."))
        return redirect("mfa_index")
