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
from yoco.desk.access import account_manager, desk, reauthenticated
from yoco.desk.forms import ExclusionForm, NoteForm
from yoco.desk.steps import figures_of, figures_preview
from yoco.guarantee.labels import rule_sentence
from yoco.guarantee.reviews import (
    dispute_decide,
    dispute_effect,
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
@reauthenticated
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
@reauthenticated
def exclusion(request: HttpRequest, exclusion_id: uuid.UUID) -> HttpResponse:
    """Accepts or rejects an exclusion that somebody else proposed."""
    row, actor = exclusion_in_url(exclusion_id), account_manager(request)
    return decide_said(
        request,
        row,
        title=_("Decide an exclusion"),
        explanation=_("Once accepted, the incident leaves the ratio. The customer may object."),
        choices=either(
            lambda accept, note: exclusion_decide(exclusion=row, accept=accept, note=note, actor=actor),
            accept=("accept", _("Accept the exclusion")),
            reject=("reject", _("Reject the exclusion")),
        ),
        done=_("Your decision is recorded."),
    )


@require_http_methods(["GET", "POST"])
@desk
@reauthenticated
def exclusion_take_back(request: HttpRequest, exclusion_id: uuid.UUID) -> HttpResponse:
    """Withdraws an exclusion, proposed or accepted."""
    row, actor = exclusion_in_url(exclusion_id), account_manager(request)
    withdraw = Choice(
        "withdraw", _("Take it back"), lambda note: exclusion_withdraw(exclusion=row, note=note, actor=actor)
    )
    return decide_said(
        request,
        row,
        title=_("Take an exclusion back"),
        explanation=_("From then on the evidence decides again."),
        choices=[withdraw],
        done=_("The exclusion is withdrawn."),
    )


@require_http_methods(["GET", "POST"])
@desk
@reauthenticated
def dispute(request: HttpRequest, dispute_id: uuid.UUID) -> HttpResponse:
    """Upholds or rejects a customer's objection."""
    row = get_object_or_404(Dispute.objects.select_related(*INCIDENT, "raised_by"), pk=dispute_id)
    placed, actor = incident_placement(incident=row.incident), account_manager(request)
    effect = dispute_effect(dispute=row, placement=placed.placement) if placed else ""
    upheld = request.POST.get("decision") == "uphold"
    return decide_said(
        request,
        row,
        title=_("Decide an objection"),
        explanation=effect,
        choices=either(
            lambda accept, note: dispute_decide(dispute=row, accept=accept, note=note, actor=actor),
            accept=("uphold", _("Uphold the objection")),
            reject=("reject", _("Reject the objection")),
        ),
        done=effect if upheld else _("The objection is rejected. The customer reads your reason."),
    )


def exclusion_in_url(exclusion_id: uuid.UUID) -> Exclusion:
    return get_object_or_404(Exclusion.objects.select_related(*INCIDENT, "proposed_by"), pk=exclusion_id)


def either(
    run: Callable[[bool, str], object], *, accept: tuple[str, Promise], reject: tuple[str, Promise]
) -> list[Choice]:
    """The two buttons of a decision: `run` takes whether it is accepted, and the reason."""
    return [
        Choice(*accept, lambda note: run(True, note)),
        Choice(*reject, lambda note: run(False, note), dangerous=True),
    ]


def decide_said(
    request: HttpRequest,
    row: Exclusion | Dispute,
    *,
    title: Promise,
    explanation: str | Promise,
    choices: list[Choice],
    done: str | Promise,
) -> HttpResponse:
    """A decision, with a reason, about what somebody said of an incident."""
    if isinstance(row, Exclusion):
        said: tuple[object, ...] = (row.get_reason_display(), row.note, row.proposed_by, row.proposed_at)
    else:
        against = rule_sentence(row.against_rule)
        said = (_("Objection"), f"{row.text}\n\n{_('Against')}: {against}", row.raised_by, row.raised_at)
    return decide(
        request,
        incident=row.incident,
        title=title,
        explanation=explanation,
        form=NoteForm(request.POST or None),
        choices=choices,
        done=done,
        said=[said],
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
