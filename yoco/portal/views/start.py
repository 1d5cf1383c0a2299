"""The first page after sign-in, and how a reader wants to read."""

from allauth.mfa.utils import is_mfa_enabled
from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone, translation
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_GET, require_POST

from yoco.accounts.models import Theme
from yoco.accounts.services import reader_update
from yoco.core.zones import ZONE_CHOICES
from yoco.portal.access import reader
from yoco.portal.selectors import contracts_listed, year_current

A_YEAR_S = 365 * 24 * 3600


@require_GET
@login_required
def home(request: HttpRequest) -> HttpResponse:
    """Account managers work at the desk; a customer with one contract that reports sees its current year; others
    choose, or are led to the first run."""
    user = reader(request)
    if user.is_account_manager:
        return redirect("desk:portfolio")
    contracts = [
        (contract, year_current(years=contract.years_listed, at=timezone.now()))  # type: ignore[attr-defined]
        for contract in contracts_listed(user=user)
    ]
    if len(contracts) == 1:
        contract, year = contracts[0]
        if year is not None and contract.is_heard:  # type: ignore[attr-defined]
            return redirect("portal:year", contract.pk, year.pk)
    memberships = user.memberships.filter(revoked_at=None).select_related("organisation").order_by("organisation__name")
    organisations = dict.fromkeys(contract.organisation for contract, _year in contracts)
    return render(
        request,
        "portal/home.html",
        {"contracts": contracts, "memberships": memberships, "organisations": organisations},
    )


@require_POST
def preferences(request: HttpRequest) -> HttpResponse:
    """Language and theme, from the foot of every page: kept with the person who is signed in, and in the browser for
    the pages before that."""
    target = request.POST.get("next", "/")
    own = {request.get_host()}
    if not url_has_allowed_host_and_scheme(target, allowed_hosts=own, require_https=request.is_secure()):
        target = "/"
    known = {"language": dict(settings.LANGUAGES), "theme": Theme.values}
    chosen = {name: request.POST[name] for name, values in known.items() if request.POST.get(name) in values}
    if chosen and request.user.is_authenticated:
        reader_update(user=reader(request), **chosen)
    return _remember(HttpResponseRedirect(target), **chosen)


def _remember(response: HttpResponseRedirect, **chosen: str) -> HttpResponseRedirect:
    """The browser keeps the language and the theme that it was told, so that the page for signing in has them, too."""
    for name, cookie in (("language", settings.LANGUAGE_COOKIE_NAME), ("theme", settings.THEME_COOKIE_NAME)):
        if name in chosen:
            response.set_cookie(
                cookie, chosen[name], max_age=A_YEAR_S, samesite="Lax", secure=settings.HTTPS, httponly=True
            )
    return response


class ReaderForm(forms.Form):
    name = forms.CharField(label=gettext_lazy("Name"), max_length=120)
    language = forms.ChoiceField(label=gettext_lazy("Language"), choices=settings.LANGUAGES)
    time_zone = forms.ChoiceField(
        label=gettext_lazy("Time zone"),
        choices=ZONE_CHOICES,
        help_text=gettext_lazy("Times on every page are shown in it. A contract year keeps the contract's own zone."),
    )
    theme = forms.ChoiceField(label=gettext_lazy("Theme"), choices=Theme.choices)


@login_required
def settings_page(request: HttpRequest) -> HttpResponse:
    """The reader's own name, language, time zone and theme."""
    user = reader(request)
    initial = {
        "name": user.name,
        "language": user.language or translation.get_language(),
        "time_zone": user.time_zone,
        "theme": user.theme or request.COOKIES.get(settings.THEME_COOKIE_NAME) or Theme.AUTO,
    }
    form = ReaderForm(request.POST or None, initial=initial)
    if request.method == "POST" and form.is_valid():
        reader_update(user=user, **form.cleaned_data)
        with translation.override(form.cleaned_data["language"]):
            messages.success(request, _("Your settings are saved."))
        saved = HttpResponseRedirect(reverse("portal:settings"))
        return _remember(saved, language=form.cleaned_data["language"], theme=form.cleaned_data["theme"])
    memberships = user.memberships.filter(revoked_at=None).select_related("organisation").order_by("organisation__name")
    context = {
        "section": "settings",
        "form": form,
        "memberships": memberships,
        "second_factor": is_mfa_enabled(user),
    }
    return render(request, "portal/settings.html", context)
