"""The page behind an invitation's link: with it, a new person makes an account and a known one joins."""

from allauth.account.utils import perform_login
from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import get_language, gettext_lazy
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from yoco.accounts.invitations import invitation_by_token, invitation_take, invited_user_create
from yoco.accounts.models import Invitation, User
from yoco.accounts.sso import provider_of
from yoco.contracts.models import Contract
from yoco.core.problem import DomainError
from yoco.portal.managing import beyond_limit
from yoco.portal.views.sign_on import login_address


class JoinForm(forms.Form):
    name = forms.CharField(
        label=gettext_lazy("Your name"), max_length=120, widget=forms.TextInput(attrs={"autocomplete": "name"})
    )
    password = forms.CharField(
        label=gettext_lazy("Password"),
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text=gettext_lazy("At least 12 characters, and no common one."),
    )

    def __init__(self, *args: object, invitation: Invitation, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._invitation = invitation

    def clean(self) -> None:
        super().clean()
        user = User(email=self._invitation.email, name=self.cleaned_data.get("name", ""))
        if password := self.cleaned_data.get("password"):
            try:
                validate_password(password, user)
            except ValidationError as error:
                self.add_error("password", error)


@never_cache
@require_http_methods(["GET", "POST"])
def invitation(request: HttpRequest, token: str) -> HttpResponse:
    """What one is invited to, and the one step that is left."""
    found = invitation_by_token(token)
    if found is None:
        return render(request, "portal/invitation_over.html", status=404)
    if request.method == "POST" and (limited := beyond_limit(request, action="accept_invitation")):
        return limited
    known = User.objects.filter(email=found.email).exists()
    mine = isinstance(request.user, User) and request.user.email == found.email
    form = JoinForm(request.POST or None, invitation=found) if not known else None
    if request.method == "POST":
        try:
            if mine:
                invitation_take(invitation=found, user=request.user)  # type: ignore[arg-type]
                return _welcome(request, found)
            if form is not None and not request.user.is_authenticated and form.is_valid():
                user = invited_user_create(
                    invitation=found,
                    name=form.cleaned_data["name"],
                    password=form.cleaned_data["password"],
                    language=get_language() or "",
                    time_zone=_zone_of(found),
                )
                _welcome(request, found)
                answer: HttpResponse = perform_login(request, user, redirect_url=reverse("portal:home"))
                return answer
        except DomainError as error:
            messages.error(request, error.message)
            return redirect("portal:invitation", token)
    provider = provider_of(found.email, settings.SSO_PROVIDERS)
    context = {
        "invitation": found,
        "known": known,
        "mine": mine,
        "form": form,
        "sign_on": provider,
        "sign_on_address": provider and login_address(request, provider),
    }
    return render(request, "portal/invitation.html", context)


def _zone_of(found: Invitation) -> str:
    """Where the organisation's contract counts its days: nearer to its people than UTC until they choose."""
    zones = Contract.objects.filter(organisation=found.organisation_id).order_by("number")
    return zones.values_list("time_zone", flat=True).first() or "UTC"


def _welcome(request: HttpRequest, found: Invitation) -> HttpResponse:
    messages.success(
        request, _("You are a member of %(organisation)s now.") % {"organisation": found.organisation.name}
    )
    return redirect("portal:home")
