"""From an e-mail address to the sign-on of its organisation. No page lists the providers: they are customers' names."""

from django import forms
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme, urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from yoco.accounts.sso import SSOProvider, provider_of


class AddressForm(forms.Form):
    email = forms.EmailField(
        label=gettext_lazy("E-mail address"), widget=forms.EmailInput(attrs={"autocomplete": "email"})
    )


@require_http_methods(["GET", "POST"])
def sign_on(request: HttpRequest) -> HttpResponse:
    """Asks for the address and leads on to the provider that may speak for its domain."""
    form = AddressForm(request.POST or None)
    target = request.POST.get("next") or request.GET.get("next", "")
    if request.method == "POST" and form.is_valid():
        provider = provider_of(form.cleaned_data["email"], settings.SSO_PROVIDERS)
        if provider is not None:
            return redirect(login_address(request, provider, target))
        form.add_error("email", _("No sign-on is set up for this address. Sign in with your password or a passkey."))
    return render(request, "portal/sign_on.html", {"form": form, "next": target})


def login_address(request: HttpRequest, provider: SSOProvider, target: str = "") -> str:
    """Where signing in with `provider` begins; `target`, if it is ours, is the page to come back to."""
    name = "openid_connect_login" if provider.kind == "oidc" else "saml_login"
    address = reverse(name, args=[provider.id])
    if target and url_has_allowed_host_and_scheme(target, {request.get_host()}, require_https=request.is_secure()):
        address += "?" + urlencode({"next": target})
    return address
