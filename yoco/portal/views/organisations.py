"""An organisation's members and keys. Everyone in it sees them; administrators and owners change them."""

import uuid

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from yoco.accounts.access import access_organisation, visible
from yoco.accounts.models import AgentKey, Membership, Organisation, Role, Scope
from yoco.accounts.services import agent_key_create, agent_key_revoke, member_revoke, member_role_set
from yoco.contracts.models import Contract
from yoco.core.problem import DomainError
from yoco.portal.access import reader


class KeyForm(forms.Form):
    name = forms.CharField(
        label=gettext_lazy("Name"), max_length=80, help_text=gettext_lazy("For instance the cluster.")
    )
    scope = forms.ChoiceField(label=gettext_lazy("What it may do"), choices=Scope.choices)
    contract = forms.ModelChoiceField(
        label=gettext_lazy("Contract"),
        queryset=Contract.objects.none(),
        help_text=gettext_lazy("Incidents reported with this key count in its guarantee."),
    )

    def __init__(self, *args: object, organisation: Organisation, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        contracts = Contract.objects.filter(organisation=organisation).order_by("number")
        self.fields["contract"].queryset = contracts  # type: ignore[attr-defined]
        if len(contracts) == 1:
            self.fields["contract"].initial = contracts[0]


@require_GET
@login_required
def organisation(request: HttpRequest, organisation_id: uuid.UUID) -> HttpResponse:
    """Who belongs to it, and which keys its machines use."""
    found = access_organisation(reader(request), organisation_id)
    context = {
        "section": "settings",
        "organisation": found,
        "members": Membership.objects.filter(organisation=found, revoked_at=None)
        .select_related("user")
        .order_by("created_at"),
        "keys": AgentKey.objects.filter(organisation=found)
        .select_related("contract")
        .order_by("revoked_at", "-created_at"),
        "may_manage": may_manage(request, found),
        "roles": Role.choices,
    }
    return render(request, "portal/organisation.html", context)


def may_manage(request: HttpRequest, found: Organisation) -> bool:
    """An administrator or owner of this organisation. The vendor's people look, and leave it to the customer."""
    user = reader(request)
    if user.is_account_manager:
        return False
    mine = visible(Organisation.objects.all(), principal=user, organisation="self", minimum=Role.ADMIN)
    return mine.filter(pk=found.pk).exists()


def managed(request: HttpRequest, organisation_id: uuid.UUID) -> Organisation:
    """The organisation, for those who manage it: 404 for strangers, 403 for the others."""
    found = access_organisation(reader(request), organisation_id)
    if not may_manage(request, found):
        raise PermissionDenied
    return found


@never_cache
@require_http_methods(["GET", "POST"])
@login_required
def key_create(request: HttpRequest, organisation_id: uuid.UUID) -> HttpResponse:
    """The new key's text is in this one answer and nowhere else."""
    found = managed(request, organisation_id)
    form = KeyForm(request.POST or None, organisation=found)
    if request.method == "POST" and form.is_valid():
        try:
            key, text = agent_key_create(
                organisation=found,
                contract=form.cleaned_data["contract"],
                scope=Scope(form.cleaned_data["scope"]),
                name=form.cleaned_data["name"],
                actor=reader(request),
            )
        except DomainError as error:
            form.add_error("name", error.message)
        else:
            context = {
                "section": "settings",
                "organisation": found,
                "key": key,
                "text": text,
                "site": settings.SITE_URL,
            }
            return render(request, "portal/key_created.html", context, status=201)
    return render(request, "portal/key_new.html", {"section": "settings", "organisation": found, "form": form})


@require_POST
@login_required
def key_revoke(request: HttpRequest, organisation_id: uuid.UUID, key_id: uuid.UUID) -> HttpResponse:
    found = managed(request, organisation_id)
    key = get_object_or_404(AgentKey, organisation=found, pk=key_id)
    try:
        agent_key_revoke(key=key, actor=reader(request))
    except DomainError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, _("The key “%(name)s” is revoked.") % {"name": key.name})
    return redirect("portal:organisation", found.pk)


@require_POST
@login_required
def member_change(request: HttpRequest, organisation_id: uuid.UUID, membership_id: uuid.UUID) -> HttpResponse:
    """Another role, or none: then the person sees nothing of this organisation from the next page on."""
    found = managed(request, organisation_id)
    membership = get_object_or_404(Membership, organisation=found, pk=membership_id, revoked_at=None)
    role = request.POST.get("role", "")
    try:
        if role == "none":
            member_revoke(membership=membership, actor=reader(request))
        elif role in Role.values:
            member_role_set(membership=membership, role=Role(role), actor=reader(request))
        else:
            raise DomainError(_("There is no such role."), code="bad_role")
    except DomainError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, _("The change is saved."))
    return redirect("portal:organisation", found.pk)
