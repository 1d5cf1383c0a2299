"""What belongs to one root event: account managers merge, split and leave it to the rules again, with a reason.

A regrouping from which the vendor would gain becomes a proposal, which a second account manager decides here.
"""

import uuid
from collections.abc import Callable, Collection
from functools import partial

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils.functional import Promise
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods

from yoco.accounts.models import User
from yoco.desk.access import account_manager, desk, reauthenticated
from yoco.desk.forms import MergeForm, NoteForm
from yoco.desk.selectors import events_near
from yoco.desk.views.reviews import Choice, decide, either, incident_in_url
from yoco.guarantee.regrouping import incidents_regroup, regrouping_apply, regrouping_decide, regrouping_withdraw
from yoco.incidents.models import Incident, RegroupingAction, RegroupingProposal

SECOND = _("Where the share would gain by it, it waits for a second account manager.")


@require_http_methods(["GET", "POST"])
@desk
@reauthenticated
def merge(request: HttpRequest, contract_id: uuid.UUID, incident_id: uuid.UUID) -> HttpResponse:
    """Makes this incident, its root event's others and those of the chosen root events one root event."""
    incident, actor = incident_in_url(contract_id, incident_id), account_manager(request)
    form = MergeForm(request.POST or None, events=events_near(incident=incident))
    shown = request.method == "POST" and form.is_valid() and request.POST.get("decision") != "change"

    def members() -> set[Incident]:
        chosen = {incident.root_event_id, *form.cleaned_data["events"]} - {None}
        found = Incident.objects.filter(contract=incident.contract, root_event_id__in=chosen)
        return {incident, *found.select_related("contract")}

    return decide(
        request,
        incident=incident,
        title=RegroupingAction.MERGE.label,
        explanation=format_lazy(
            "{} {}",
            _(
                "They become one root event, and count once where the terms say so. "
                "The customer sees it with your reason."
            ),
            SECOND,
        ),
        form=form,
        choices=[_choice(RegroupingAction.MERGE, _("Merge"), members, actor)] if shown else [],
        done=partial(_done, _("The incidents are one root event now.")),
        asks=True,
    )


@require_http_methods(["GET", "POST"])
@desk
@reauthenticated
def split(request: HttpRequest, contract_id: uuid.UUID, incident_id: uuid.UUID) -> HttpResponse:
    """Makes an incident a root event of its own."""
    incident, actor = incident_in_url(contract_id, incident_id), account_manager(request)
    return decide(
        request,
        incident=incident,
        title=RegroupingAction.SPLIT.label,
        explanation=format_lazy(
            "{} {}", _("The incident becomes a root event of its own. The customer sees it with your reason."), SECOND
        ),
        form=NoteForm(request.POST or None),
        choices=[_choice(RegroupingAction.SPLIT, _("Split"), lambda: [incident], actor)],
        done=partial(_done, _("The incident is a root event of its own now.")),
    )


@require_http_methods(["GET", "POST"])
@desk
@reauthenticated
def revert(request: HttpRequest, contract_id: uuid.UUID, incident_id: uuid.UUID) -> HttpResponse:
    """Lets the rules group an incident again that people had moved."""
    incident, actor = incident_in_url(contract_id, incident_id), account_manager(request)
    return decide(
        request,
        incident=incident,
        title=RegroupingAction.REVERT.label,
        explanation=format_lazy(
            "{} {}",
            _("What people moved is taken back for this incident; the rules decide what it belongs to."),
            SECOND,
        ),
        form=NoteForm(request.POST or None),
        choices=[_choice(RegroupingAction.REVERT, _("Back to the rules"), lambda: [incident], actor)],
        done=partial(_done, _("The rules group this incident again.")),
    )


@require_http_methods(["GET", "POST"])
@desk
@reauthenticated
def proposal(request: HttpRequest, proposal_id: uuid.UUID) -> HttpResponse:
    """Accepts or rejects a regrouping that somebody else proposed; its proposer can take it back."""
    proposals = RegroupingProposal.objects.select_related("contract__organisation", "proposed_by")
    row, actor = get_object_or_404(proposals, pk=proposal_id), account_manager(request)
    incidents = list(row.incidents.select_related("contract__organisation", "run").order_by("started_at", "pk"))
    mine = row.proposed_by_id == actor.pk
    withdraw = Choice(
        "withdraw", _("Take it back"), lambda note: regrouping_withdraw(proposal=row, note=note, actor=actor)
    )
    answers = either(
        lambda accept, note: regrouping_decide(proposal=row, accept=accept, note=note, actor=actor),
        accept=("accept", _("Accept the regrouping")),
        reject=("reject", _("Reject the regrouping")),
    )
    listed = "\n".join(f"{one.run} · {one.started_at:%Y-%m-%d %H:%M:%S} UTC · {one.node}" for one in incidents)
    return decide(
        request,
        incident=incidents[0],
        title=_("Decide a regrouping"),
        explanation=_("Once accepted, the year's figures change as shown. The customer sees it and may object."),
        form=NoteForm(request.POST or None),
        choices=[withdraw] if mine else answers,
        done=_("Your decision is recorded."),
        said=[
            (row.get_action_display(), row.reason, row.proposed_by, row.proposed_at),
            (_("Incidents"), listed, "", None),
        ],
    )


def _choice(
    action: RegroupingAction, label: str | Promise, members: Callable[[], Collection[Incident]], actor: User
) -> Choice:
    """Regroups or proposes; the preview shows what it does once agreed."""
    return Choice(
        action.value,
        label,
        run=lambda note: incidents_regroup(action=action, incidents=members(), actor=actor, reason=note),
        shown=lambda note: regrouping_apply(action=action, incidents=members(), actor=actor, reason=note),
    )


def _done(at_once: str | Promise, waits: object) -> str | Promise:
    return _("The regrouping is proposed. It waits for a second person.") if waits else at_once
