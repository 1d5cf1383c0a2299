"""An organisation's members, invitations and keys. Everyone in it sees them; administrators and owners change them."""

import uuid

from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_GET, require_POST

from yoco.accounts.access import access_organisation
from yoco.accounts.invitations import (
    invitation_create,
    invitation_revoke,
    invitations_open,
    may_invite_owner,
)
from yoco.accounts.models import AgentKey, Invitation, Membership, Organisation, Role
from yoco.accounts.services import member_revoke, member_role_set
from yoco.core.problem import DomainError
from yoco.portal.access import reader
from yoco.portal.managing import beyond_limit, confirmed, managed, may_invite, may_manage


class InvitationForm(forms.Form):
    email = forms.EmailField(
        label=gettext_lazy("E-mail address"), widget=forms.EmailInput(attrs={"autocomplete": "off"})
    )
    role = forms.ChoiceField(label=gettext_lazy("Role"), choices=Role.choices, initial=Role.MEMBER)

    def __init__(self, *args: object, owner_too: bool, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        if not owner_too:
            self.fields["role"].choices = [  # type: ignore[attr-defined]
                (value, label) for value, label in Role.choices if value != Role.OWNER
            ]


@require_GET
@login_required
def organisation(request: HttpRequest, organisation_id: uuid.UUID) -> HttpResponse:
    """Who belongs to it, who is invited, and which keys its machines use."""
    found = access_organisation(reader(request), organisation_id)
    members = list(
        Membership.objects.filter(organisation=found, revoked_at=None).select_related("user").order_by("created_at")
    )
    invites = may_invite(request, found)
    owner_too = invites and may_invite_owner(organisation=found, user=reader(request))
    context = {
        "section": "settings",
        "organisation": found,
        "members": members,
        "has_owner": any(member.role == Role.OWNER for member in members),
        "invitations": invitations_open()
        .filter(organisation=found)
        .select_related("invited_by")
        .order_by("created_at"),
        "keys": AgentKey.objects.filter(organisation=found)
        .select_related("contract")
        .order_by("revoked_at", "-created_at"),
        "may_manage": may_manage(request, found),
        "may_invite": invites,
        "form": InvitationForm(owner_too=owner_too) if invites else None,
        "roles": Role.choices,
    }
    return render(request, "portal/organisation.html", context)


def _inviting(request: HttpRequest, found: Organisation) -> HttpResponse:
    if limited := beyond_limit(request, action="invite"):
        return limited
    user = reader(request)
    form = InvitationForm(request.POST, owner_too=may_invite_owner(organisation=found, user=user))
    if not form.is_valid():
        messages.error(request, _("Nobody was invited: give one complete e-mail address and a role."))
        return redirect("portal:organisation", found.pk)
    try:
        invitation = invitation_create(
            organisation=found, email=form.cleaned_data["email"], role=Role(form.cleaned_data["role"]), actor=user
        )
    except DomainError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, _("The invitation is on its way to %(email)s.") % {"email": invitation.email})
    return redirect("portal:organisation", found.pk)


invite = require_POST(confirmed(_inviting, may_invite))


@require_POST
@login_required
def invitation_withdraw(request: HttpRequest, organisation_id: uuid.UUID, invitation_id: uuid.UUID) -> HttpResponse:
    """The link is dead at once; like revoking a key, without a question."""
    found = managed(request, organisation_id, may_invite)
    invitation = get_object_or_404(Invitation, organisation=found, pk=invitation_id)
    try:
        invitation_revoke(invitation=invitation, actor=reader(request))
    except DomainError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, _("The invitation of %(email)s is withdrawn.") % {"email": invitation.email})
    return redirect("portal:organisation", found.pk)


@require_POST
@confirmed
def member_change(request: HttpRequest, found: Organisation, membership_id: uuid.UUID) -> HttpResponse:
    """Another role, or none: then the person sees nothing of this organisation from the next page on."""
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
