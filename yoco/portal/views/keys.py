"""The keys of an organisation's machines: make, look at, rotate, revoke. A key's text is shown once."""

import datetime
import uuid

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from yoco.accounts.access import access_organisation
from yoco.accounts.key_services import OVERLAP, agent_key_revoke, agent_key_rotate
from yoco.accounts.models import AgentKey, Organisation, Scope
from yoco.accounts.services import agent_key_create
from yoco.contracts.models import Contract
from yoco.core.problem import DomainError
from yoco.portal.access import reader
from yoco.portal.managing import confirmed, managed, may_manage


class KeyForm(forms.Form):
    name = forms.CharField(
        label=gettext_lazy("Name"), max_length=80, help_text=gettext_lazy("For instance the cluster.")
    )
    scope = forms.ChoiceField(label=gettext_lazy("What it may do"), choices=Scope.choices)
    contract = forms.ModelChoiceField(
        label=gettext_lazy("Contract"),
        required=False,
        queryset=Contract.objects.none(),
        help_text=gettext_lazy(
            "Incidents reported with this key count in its guarantee. A key for reading needs none: it reads all "
            "contracts of the organisation."
        ),
    )
    ends_on = forms.DateField(
        label=gettext_lazy("Ends on"),
        required=False,
        widget=forms.DateInput(attrs={"type": "date"}),
        help_text=gettext_lazy("It is refused from this day on. Without a day it lasts until it is revoked."),
    )

    def __init__(self, *args: object, organisation: Organisation, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        contracts = Contract.objects.filter(organisation=organisation).order_by("number")
        self.fields["contract"].queryset = contracts  # type: ignore[attr-defined]
        if len(contracts) == 1:
            self.fields["contract"].initial = contracts[0]

    def clean(self) -> None:
        super().clean()
        if self.cleaned_data.get("scope") == Scope.INGEST and not self.cleaned_data.get("contract"):
            self.add_error("contract", _("A key that reports incidents belongs to a contract."))

    def expires_at(self) -> datetime.datetime | None:
        """The first instant of the chosen day in the reader's zone."""
        day: datetime.date | None = self.cleaned_data["ends_on"]
        return None if day is None else timezone.make_aware(datetime.datetime.combine(day, datetime.time.min))


class RotateForm(forms.Form):
    ends_at = forms.DateTimeField(
        label=gettext_lazy("The old key works until"),
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        help_text=gettext_lazy("In your time zone. Put the new key on every machine by then."),
    )


@never_cache
@require_http_methods(["GET", "POST"])
@confirmed
def key_create(request: HttpRequest, found: Organisation) -> HttpResponse:
    """The new key's text is in this one answer and nowhere else."""
    form = KeyForm(request.POST or None, organisation=found)
    if request.method == "POST" and form.is_valid():
        try:
            key, text = agent_key_create(
                organisation=found,
                contract=form.cleaned_data["contract"],
                scope=Scope(form.cleaned_data["scope"]),
                name=form.cleaned_data["name"],
                actor=reader(request),
                expires_at=form.expires_at(),
            )
        except DomainError as error:
            form.add_error("ends_on" if error.code == "key_expired" else "name", error.message)
        else:
            return _shown_once(request, found, key, text)
    return render(request, "portal/key_new.html", {"section": "settings", "organisation": found, "form": form})


@require_GET
@login_required
def key_detail(request: HttpRequest, organisation_id: uuid.UUID, key_id: uuid.UUID) -> HttpResponse:
    """What the key is for and when it was last used; rotation and revocation for those who manage it."""
    found = access_organisation(reader(request), organisation_id)
    keys = AgentKey.objects.select_related("contract", "created_by")
    key = get_object_or_404(keys, organisation=found, pk=key_id)
    context = {
        "section": "settings",
        "organisation": found,
        "key": key,
        "may_manage": may_manage(request, found),
        "form": RotateForm(initial={"ends_at": timezone.localtime() + OVERLAP}),
    }
    return render(request, "portal/key.html", context)


@never_cache
@require_POST
@confirmed
def key_rotate(request: HttpRequest, found: Organisation, key_id: uuid.UUID) -> HttpResponse:
    """A successor now; the old key ends at the chosen time."""
    key = get_object_or_404(AgentKey, organisation=found, pk=key_id)
    form = RotateForm(request.POST)
    if not form.is_valid():
        messages.error(request, _("Choose a time until which the old key works."))
        return redirect("portal:key", found.pk, key.pk)
    try:
        successor, text = agent_key_rotate(
            key=key, actor=reader(request), overlap=form.cleaned_data["ends_at"] - timezone.now()
        )
    except DomainError as error:
        messages.error(request, error.message)
        return redirect("portal:key", found.pk, key.pk)
    key.refresh_from_db()
    return _shown_once(request, found, successor, text, predecessor=key)


@require_POST
@login_required
def key_revoke(request: HttpRequest, organisation_id: uuid.UUID, key_id: uuid.UUID) -> HttpResponse:
    """At once, and without asking who it is: a leaked key cannot wait."""
    found = managed(request, organisation_id)
    key = get_object_or_404(AgentKey, organisation=found, pk=key_id)
    agent_key_revoke(key=key, actor=reader(request))
    messages.success(request, _("The key “%(name)s” is revoked.") % {"name": key.name})
    return redirect("portal:organisation", found.pk)


def _shown_once(
    request: HttpRequest, found: Organisation, key: AgentKey, text: str, predecessor: AgentKey | None = None
) -> HttpResponse:
    context = {
        "section": "settings",
        "organisation": found,
        "key": key,
        "text": text,
        "predecessor": predecessor,
        "site": settings.SITE_URL,
    }
    return render(request, "portal/key_created.html", context, status=201)
