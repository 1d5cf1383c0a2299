"""A closed year restated by hand, and what waits for a second person: previewed, confirmed, told what happened."""

import uuid

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from yoco.contracts.models import Contract, ContractYear
from yoco.contracts.words import Change
from yoco.core.problem import DomainError
from yoco.core.templatetags.formats import number
from yoco.desk.access import account_manager, desk, reauthenticated
from yoco.desk.forms import ProposalForm, RestateForm
from yoco.desk.views.changing import changes_preview
from yoco.guarantee.labels import restatement_because, verdict_words
from yoco.guarantee.models import Proposal, ProposalKind, RestatementDue, Statement
from yoco.guarantee.proposals import proposal_decide, proposal_run, proposal_withdraw, restatement_confirm
from yoco.guarantee.restating import Restatement, restatement_preview, taken_back
from yoco.guarantee.services import year_is_large
from yoco.incidents.models import Decision, Incident

MOVES_SHOWN = 50


@require_http_methods(["GET", "POST"])
@desk
@reauthenticated
def restate(request: HttpRequest, contract_id: uuid.UUID, year_id: uuid.UUID) -> HttpResponse:
    """GET asks for the reason; a POST shows the next revision; a POST with `decision=confirm` of what was shown writes
    it, or proposes it where it takes a credit away or moves money."""
    years = ContractYear.objects.select_related("contract__organisation")
    year, actor = get_object_or_404(years, pk=year_id, contract_id=contract_id), account_manager(request)
    form = RestateForm(request.POST or None)
    preview: Restatement | None = None
    refused = ""
    if request.method == "POST" and form.is_valid() and request.POST.get("decision") != "change":
        reason = form.cleaned_data["reason"]
        try:
            if request.POST.get("decision") == "confirm":
                shown = request.POST.get("shown", "")
                done = restatement_confirm(year=year, reason=reason, actor=actor, shown=shown)
                return _done(request, year, done)
        except DomainError as error:
            refused = error.message
        try:
            preview = restatement_preview(year=year, reason=reason, actor=actor)
        except DomainError as error:
            refused = refused or error.message
    due = RestatementDue.objects.filter(year=year).first()
    context = {
        "contract": year.contract,
        "year": year,
        "latest": Statement.objects.filter(year=year).defer("canonical", "summary").order_by("-revision").first(),
        "due": restatement_because(", ".join(due.reasons)) if due else "",
        "large": year_is_large(year=year),
        "form": form,
        **(_restatement_context(preview) if preview else {}),
        "refused": refused,
        "back": reverse("desk:contract", args=[year.contract_id]),
    }
    return render(request, "desk/restate.html", context, status=409 if refused else 200)


def _done(request: HttpRequest, year: ContractYear, done: Restatement | Proposal) -> HttpResponse:
    if isinstance(done, Proposal):
        messages.success(request, _("The restatement is proposed. It waits for a second person."))
        return redirect("desk:proposal", done.pk)
    messages.success(request, restated_words(done))
    return redirect("portal:statement", year.contract_id, year.pk, done.after.revision)


def restated_words(done: Restatement) -> str:
    """What happened, in one or two sentences."""
    said = _("Revision %(revision)s is written: %(k)s of %(n)s resolved without loss. %(verdict)s") % {
        "revision": done.after.revision,
        "k": number(done.after.resolved),
        "n": number(done.after.counted),
        "verdict": verdict_words(done.after.verdict, closed=True),
    }
    effects = {
        "none": "",
        "proposed": _("A credit is proposed."),
        "reversed": _("The credit is reversed."),
        "questioned": _("The credit pays nothing until somebody settles it."),
        "confirmed": _("The credit is no longer in question."),
    }
    return f"{said} {effects[done.effect]}".strip()


def _restatement_context(restatement: Restatement) -> dict[str, object]:
    """What the preview names: the first incidents that move, with their workloads."""
    moves = restatement.differences.moves
    found = Incident.objects.filter(public_id__in=[move.incident for move in moves[:MOVES_SHOWN]])
    incidents = {row.public_id: row for row in found.select_related("run")}
    return {
        "restatement": restatement,
        "moves": [(move, incidents.get(move.incident)) for move in moves[:MOVES_SHOWN]],
        "moves_left_out": max(0, len(moves) - MOVES_SHOWN),
    }


@require_http_methods(["GET", "POST"])
@desk
@reauthenticated
def proposal(request: HttpRequest, proposal_id: uuid.UUID) -> HttpResponse:
    """Confirms or rejects what somebody else proposed; its proposer can take it back. Decided ones can be read."""
    rows = Proposal.objects.select_related("contract__organisation", "year__contract", "proposed_by", "decided_by")
    row, actor = get_object_or_404(rows, pk=proposal_id), account_manager(request)
    form = ProposalForm(request.POST or None)
    refused = ""
    decision = request.POST.get("decision")
    if request.method == "POST" and decision in ("accept", "reject", "withdraw") and form.is_valid():
        note = form.cleaned_data["note"]
        try:
            if decision == "withdraw":
                proposal_withdraw(proposal=row, note=note, actor=actor)
                messages.success(request, _("The proposal is taken back."))
                return redirect("desk:contract", row.contract_id)
            done = proposal_decide(proposal=row, accept=decision == "accept", note=note, actor=actor)
        except DomainError as error:
            refused = error.message
            row.refresh_from_db()
        else:
            if isinstance(done, Restatement) and row.year is not None:
                return _done(request, row.year, done)
            messages.success(request, str(DONE[row.kind]) if done is not None else _("The proposal is rejected."))
            return redirect("desk:contract", row.contract_id)
    pending = row.state == Decision.PENDING
    shown: dict[str, object] = {}
    stale = ""
    if pending:
        try:
            shown = _proposal_context(row)
        except DomainError as error:
            stale = error.message
    context = {
        "contract": row.contract,
        "proposal": row,
        "pending": pending,
        "mine": row.proposed_by_id == actor.pk,
        "form": form,
        **shown,
        "stale": stale,
        "refused": refused,
        "back": reverse("desk:contract", args=[row.contract_id]),
    }
    return render(request, "desk/proposal.html", context, status=409 if refused else 200)


DONE: dict[str, Promise] = {
    ProposalKind.TERMS: gettext_lazy(
        "The new version of the terms is recorded. The customer sees it on the page of the terms."
    ),
    ProposalKind.END: gettext_lazy("The contract ends early. Its last year closes when late reports no longer count."),
}


def _proposal_context(row: Proposal) -> dict[str, object]:
    if row.kind == ProposalKind.RESTATEMENT:
        restatement = taken_back(lambda: proposal_run(row))
        assert isinstance(restatement, Restatement)
        return _restatement_context(restatement)
    changes: list[Change] = changes_preview(row.contract, lambda: _contract_of(row))
    return {"changes": changes}


def _contract_of(row: Proposal) -> Contract:
    done = proposal_run(row)
    assert isinstance(done, Contract)
    return done
