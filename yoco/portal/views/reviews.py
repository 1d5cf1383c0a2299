"""A customer objects to where an incident was placed or takes the objection back; both sides comment."""

import uuid
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from yoco.accounts.models import Role
from yoco.core.problem import DomainError
from yoco.guarantee.labels import rule_sentence
from yoco.guarantee.reviews import dispute_effect, dispute_raise, dispute_withdraw, exclusion_live
from yoco.guarantee.selectors import incident_placement
from yoco.incidents.models import Decision, Dispute
from yoco.incidents.review import comment_write
from yoco.portal.access import incident_in_url, reader
from yoco.portal.selectors import is_member


class DisputeForm(forms.Form):
    """An objection; where an exclusion is proposed, to that or to where the incident stands meanwhile."""

    against = forms.ChoiceField(
        label=gettext_lazy("What you object to"),
        choices=[
            ("exclusion", gettext_lazy("The exclusion that is proposed")),
            ("placing", gettext_lazy("Where the incident stands now")),
        ],
        widget=forms.RadioSelect,
    )
    text = forms.CharField(
        label=gettext_lazy("What is wrong, and how you know"),
        widget=forms.Textarea(attrs={"rows": 6}),
        max_length=4000,
        help_text=gettext_lazy("Your account managers read it, decide, and answer with a reason that you see here."),
    )

    def __init__(self, *args: Any, exclusion_proposed: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not exclusion_proposed:
            del self.fields["against"]


@require_http_methods(["GET", "POST"])
@login_required
def dispute(request: HttpRequest, contract_id: uuid.UUID, incident_id: uuid.UUID) -> HttpResponse:
    """Members and above may object; viewers and account managers may not."""
    incident = incident_in_url(request, contract_id, incident_id, minimum=Role.MEMBER)
    if not is_member(user=reader(request), contract=incident.contract):
        raise PermissionDenied
    placed = incident_placement(incident=incident)
    exclusion = exclusion_live(incident=incident)
    proposed = exclusion is not None and exclusion.state == Decision.PENDING
    form = DisputeForm(request.POST or None, exclusion_proposed=proposed)
    if request.method == "POST" and form.is_valid():
        try:
            raised = dispute_raise(
                incident=incident,
                text=form.cleaned_data["text"],
                actor=reader(request),
                against=form.cleaned_data.get("against"),
            )
        except DomainError as error:
            form.add_error(None, error.message)
        else:
            said = [_("Your objection is recorded. An account manager decides it.")]
            if placed is not None:
                said.append(dispute_effect(dispute=raised, placement=placed.placement))
            messages.success(request, " ".join(said))
            return redirect("portal:incident", contract_id, incident_id)
    context = {
        "section": "incidents",
        "contract": incident.contract,
        "year": placed.placement.year if placed else None,
        "incident": incident,
        "placement": placed.placement if placed else None,
        "rule_words": rule_sentence(placed.placement.rule) if placed else "",
        "exclusion": exclusion if proposed else None,
        "form": form,
    }
    return render(request, "portal/dispute.html", context)


@require_POST
@login_required
def dispute_take_back(request: HttpRequest, contract_id: uuid.UUID, incident_id: uuid.UUID) -> HttpResponse:
    """Withdraws the objection that waits for a decision."""
    incident = incident_in_url(request, contract_id, incident_id, minimum=Role.MEMBER)
    waiting = get_object_or_404(
        Dispute.objects.select_related("incident__contract"), incident=incident, state=Decision.PENDING
    )
    try:
        dispute_withdraw(dispute=waiting, actor=reader(request))
    except DomainError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, _("Your objection is withdrawn."))
    return redirect("portal:incident", contract_id, incident_id)


class CommentForm(forms.Form):
    text = forms.CharField(
        label=gettext_lazy("Your comment"),
        widget=forms.Textarea(attrs={"rows": 3}),
        max_length=4000,
        help_text=gettext_lazy(
            "The people of this organisation and your account managers read it. It stays as it is written."
        ),
    )


@require_POST
@login_required
def comment(request: HttpRequest, contract_id: uuid.UUID, incident_id: uuid.UUID) -> HttpResponse:
    """Members and above write, and account managers; viewers read."""
    incident = incident_in_url(request, contract_id, incident_id, minimum=Role.MEMBER)
    form = CommentForm(request.POST)
    if not form.is_valid():
        problems = (problem for error in form.errors["text"].as_data() for problem in error.messages)
        messages.error(request, " ".join(problems))
        return redirect("portal:incident", contract_id, incident_id)
    written = comment_write(incident=incident, text=form.cleaned_data["text"], actor=reader(request))
    messages.success(request, _("Your comment is written."))
    return redirect(f"{reverse('portal:incident', args=[contract_id, incident_id])}#comment-{written.pk}")
