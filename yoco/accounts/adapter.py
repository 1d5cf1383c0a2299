"""How allauth behaves here: no open sign-up, e-mails in the receiver's language after the commit, reauthentication."""

from contextlib import nullcontext
from typing import Any

import structlog
from allauth.account.adapter import DefaultAccountAdapter
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest
from django.urls import reverse
from django.utils import translation
from django.utils.translation import gettext_lazy as _

from yoco.accounts.mail import language_of, mail_send
from yoco.accounts.models import User
from yoco.core.audit import audit_record

log = structlog.get_logger(__name__)
WAYS = {
    "reauthenticate": _("Use your password"),
    "mfa_reauthenticate": _("Use the authenticator app or a recovery code"),
    "mfa_reauthenticate:webauthn": _("Use a passkey or security key"),
}
UNKNOWN_ADDRESS = "0.0.0.0"  # noqa: S104 (behind a Unix socket without TRUSTED_PROXIES there is none)


class AccountAdapter(DefaultAccountAdapter):
    """Accounts are made by invitation, by a claimed sign-on or by the operator."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def send_mail(self, template_prefix: str, email: str, context: dict[str, Any]) -> None:
        language = language_of(email)
        with translation.override(language) if language else nullcontext():
            message = self.render_mail(template_prefix, email, {"request": self.request, "email": email, **context})
        mail_send(message)

    def send_notification_mail(
        self, template_prefix: str, user: User, context: dict[str, Any] | None = None, email: str | None = None
    ) -> None:
        """Every change of how a person signs in passes here: it is mailed to them and stands in the audit log."""
        audit_record(action=f"sign_in.{template_prefix.rpartition('/')[2]}", actor=user, subject=user)
        super().send_notification_mail(template_prefix, user, context, email)

    def authentication_failed(self, request: HttpRequest, **credentials: Any) -> None:
        log.warning("sign-in failed", client=self.get_client_ip(request))

    def get_client_ip(self, request: HttpRequest) -> str:
        return request.META.get("REMOTE_ADDR") or UNKNOWN_ADDRESS  # ClientAddressMiddleware has made it right

    def get_reauthentication_methods(self, user: User | AnonymousUser) -> list[dict[str, Any]]:
        """As allauth's; who has neither password nor second factor is sent to set one up instead of a bare 403."""
        methods: list[dict[str, Any]] = super().get_reauthentication_methods(user)
        for method in methods:
            method["description"] = WAYS.get(method["id"], method["description"])
        if not methods and user.is_authenticated:
            methods.append({"id": "set_up", "description": _("Set up a second factor"), "url": reverse("mfa_index")})
        return methods

    def is_reauthentication_required(self, *, app: str, **kwargs: Any) -> bool:
        """The first factor of a person who signs in elsewhere can be added without one."""
        user = self.request.user
        if app == "allauth.mfa" and user.is_authenticated and not super().get_reauthentication_methods(user):
            return False
        required: bool = super().is_reauthentication_required(app=app, **kwargs)
        return required

    def get_password_change_redirect_url(self, request: HttpRequest) -> str:
        return reverse("portal:settings")
