"""Exclusions and objections: each decision is shown with what it does to the year before it is taken."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods

from yoco.core.problem import DomainError
from yoco.desk.access import account_manager, desk
from yoco.desk.forms import ExclusionForm, NoteForm
from yoco.desk.steps import figures_of, figures_preview
from yoco.guarantee.labels import rule_sentence
from yoco.guarantee.reviews import (
    dispute_decide,
    exclusion_decide,
    exclusion_propose,
    exclusion_withdraw,
)
from yoco.guarantee.selectors import incident_placement
from yoco.incidents.models import Dispute, Exclusion, Incident

PREVIEW_NOTE = "preview"  # the preview needs some reason to run; it is rolled back
INCIDENT = ["incident__contract__organisation", "incident__run"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One button: what it says, and the decision behind it. `shown` is what the preview runs, where it differs."""

    value: str
    label: str | Promise
    run: Callable[[str], object]
    dangerous: bool = False
    shown: Callable[[str], object] | None = None


def incident_in_url(contract_id: uuid.UUID, incident_id: uuid.UUID) -> Incident:
    """Account managers see every incident; views call it behind `desk`."""
    incidents = Incident.objects.select_related("contract__organisation", "run")
    return get_object_or_404(incidents, contract_id=contract_id, public_id=incident_id)


@require_http_methods(["GET", "POST"])
@desk
def exclude(request: HttpRequest, contract_id: uuid.UUID, incident_id: uuid.UUID) -> HttpResponse:
    """Proposes to leave an incident out of the ratio; a second account manager decides."""
    incident = incident_in_url(contract_id, incident_id)
    placed = incident_placement(incident=incident)
    terms = placed.placement.terms if placed else None
    form = ExclusionForm(request.POST or None, grounds=terms.exclusions if terms else [])
    actor = account_manager(request)
    ground = form.data.get("reason", "")
    propose = Choice(
        "propose",
        _("Propose the exclusion"),
        lambda note: exclusion_propose(incident=incident, reason=ground, note=note, actor=actor),
    )
    return decide(
        request,
        incident=incident,
        title=_("Propose an exclusion"),
        explanation=_("The customer sees the proposal at once. It changes no figure until a second person accepts it."),
        form=form,
        choices=[propose],
        done=_("The exclusion is proposed. It waits for a second person."),
        preview=False,
    )


@require_http_methods(["GET", "POST"])
@desk
def exclusion(request: HttpRequest, exclusion_id: uuid.UUID) -> HttpResponse:
    """Accepts or rejects an exclusion that somebody else proposed."""
    row = get_object_or_404(Exclusion.objects.select_related(*INCIDENT, "proposed_by"), pk=exclusion_id)
    actor = account_manager(request)
    return decide(
        request,
        incident=row.incident,
        title=_("Decide an exclusion"),
        explanation=_("Once accepted, the incident leaves the ratio. The customer may object."),
        form=NoteForm(request.POST or None),
        choices=[
            Choice(
                "accept",
                _("Accept the exclusion"),
                lambda note: exclusion_decide(exclusion=row, accept=True, note=note, actor=actor),
            ),
            Choice(
                "reject",
                _("Reject the exclusion"),
                lambda note: exclusion_decide(exclusion=row, accept=False, note=note, actor=actor),
                dangerous=True,
            ),
        ],
        done=_("Your decision is recorded."),
        said=[(row.get_reason_display(), row.note, row.proposed_by, row.proposed_at)],
    )


@require_http_methods(["GET", "POST"])
@desk
def exclusion_take_back(request: HttpRequest, exclusion_id: uuid.UUID) -> HttpResponse:
    """Withdraws an exclusion, proposed or accepted."""
    row = get_object_or_404(Exclusion.objects.select_related(*INCIDENT, "proposed_by"), pk=exclusion_id)
    actor = account_manager(request)
    return decide(
        request,
        incident=row.incident,
        title=_("Take an exclusion back"),
        explanation=_("From then on the evidence decides again."),
        form=NoteForm(request.POST or None),
        choices=[
            Choice(
                "withdraw",
                _("Take it back"),
                lambda note: exclusion_withdraw(exclusion=row, note=note, actor=actor),
            )
        ],
        done=_("The exclusion is withdrawn."),
        said=[(row.get_reason_display(), row.note, row.proposed_by, row.proposed_at)],
    )


@require_http_methods(["GET", "POST"])
@desk
def dispute(request: HttpRequest, dispute_id: uuid.UUID) -> HttpResponse:
    """Upholds or rejects a customer's objection."""
    row = get_object_or_404(Dispute.objects.select_related(*INCIDENT, "raised_by"), pk=dispute_id)
    actor = account_manager(request)
    return decide(
        request,
        incident=row.incident,
        title=_("Decide an objection"),
        explanation=_("Upheld, it ends an exclusion; any other incident then counts as not resolved."),
        form=NoteForm(request.POST or None),
        choices=[
            Choice(
                "uphold",
                _("Uphold the objection"),
                lambda note: dispute_decide(dispute=row, accept=True, note=note, actor=actor),
            ),
            Choice(
                "reject",
                _("Reject the objection"),
                lambda note: dispute_decide(dispute=row, accept=False, note=note, actor=actor),
                dangerous=True,
            ),
        ],
        done=_("Your decision is recorded."),
        said=[(_("Objection"), row.text, row.raised_by, row.raised_at)],
    )


def decide(
    request: HttpRequest,
    *,
    incident: Incident,
    title: str | Promise,
    explanation: str | Promise,
    form: forms.Form,
    choices: list[Choice],
    done: str | Promise | Callable[[object], str | Promise],
    said: list[tuple[object, ...]] | None = None,
    preview: bool = True,
    asks: bool = False,
) -> HttpResponse:
    """Shows the incident, what was `said`, and the year after each choice; a POST with a choice's value takes it.

    `done` is what is said afterwards, or says it of what the choice returned. With `asks`, choices depend on what the
    form says: a POST without one shows what they do and keeps the entries.
    """
    refused = ""
    chosen = next((choice for choice in choices if choice.value == request.POST.get("decision")), None)
    if request.method == "POST" and chosen is not None and form.is_valid():
        try:
            result = chosen.run(form.cleaned_data["note"])
        except DomainError as error:
            refused = error.message
        else:
            messages.success(request, str(done(result) if callable(done) else done))
            return redirect("portal:incident", incident.contract_id, incident.public_id)
    placed = incident_placement(incident=incident)
    year = placed.placement.year if placed else None
    effects = [
        (choice, figures_preview(year=year, step=lambda choice=choice: (choice.shown or choice.run)(PREVIEW_NOTE)))  # type: ignore[misc]
        for choice in choices
        if preview and year is not None
    ]
    context = {
        "contract": incident.contract,
        "year": year,
        "incident": incident,
        "placement": placed.placement if placed else None,
        "rule_words": rule_sentence(placed.placement.rule) if placed else "",
        "title": title,
        "explanation": explanation,
        "form": form,
        "choices": choices,
        "said": said or [],
        "asks": asks,
        "now": figures_of(year) if year is not None else None,
        "effects": effects,
        "refused": refused or next((effect.refused for _choice, effect in effects if effect.refused), ""),
        "back": reverse("portal:incident", args=[incident.contract_id, incident.public_id]),
    }
    return render(request, "desk/decide.html", context, status=409 if refused else 200)
