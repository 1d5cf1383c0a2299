"""What belongs to one root event: account managers merge, split and leave it to the rules again, with a reason."""

import uuid

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods

from yoco.desk.access import account_manager, desk
from yoco.desk.forms import MergeForm, NoteForm
from yoco.desk.selectors import events_near
from yoco.desk.views.reviews import Choice, decide, incident_in_url
from yoco.guarantee.intake import incident_split, incidents_merge, regrouping_revert
from yoco.incidents.models import Incident


@require_http_methods(["GET", "POST"])
@desk
def merge(request: HttpRequest, contract_id: uuid.UUID, incident_id: uuid.UUID) -> HttpResponse:
    """Makes this incident, its root event's others and those of the chosen root events one root event."""
    incident, actor = incident_in_url(contract_id, incident_id), account_manager(request)
    form = MergeForm(request.POST or None, events=events_near(incident=incident))
    shown = request.method == "POST" and form.is_valid() and request.POST.get("decision") != "change"

    def run(note: str) -> object:
        chosen = {incident.root_event_id, *form.cleaned_data["events"]} - {None}
        members = Incident.objects.filter(contract=incident.contract, root_event_id__in=chosen)
        return incidents_merge(incidents={incident, *members.select_related("contract")}, actor=actor, reason=note)

    return decide(
        request,
        incident=incident,
        title=_("Merge with other incidents"),
        explanation=_(
            "They become one root event, and count once where the terms say so. The customer sees it with your reason."
        ),
        form=form,
        choices=[Choice("merge", _("Merge"), run)] if shown else [],
        done=_("The incidents are one root event now."),
        asks=True,
    )


@require_http_methods(["GET", "POST"])
@desk
def split(request: HttpRequest, contract_id: uuid.UUID, incident_id: uuid.UUID) -> HttpResponse:
    """Makes an incident a root event of its own."""
    incident, actor = incident_in_url(contract_id, incident_id), account_manager(request)
    return decide(
        request,
        incident=incident,
        title=_("Split from its root event"),
        explanation=_("The incident becomes a root event of its own. The customer sees it with your reason."),
        form=NoteForm(request.POST or None),
        choices=[Choice("split", _("Split"), lambda note: incident_split(incident=incident, actor=actor, reason=note))],
        done=_("The incident is a root event of its own now."),
    )


@require_http_methods(["GET", "POST"])
@desk
def revert(request: HttpRequest, contract_id: uuid.UUID, incident_id: uuid.UUID) -> HttpResponse:
    """Lets the rules group an incident again that people had moved."""
    incident, actor = incident_in_url(contract_id, incident_id), account_manager(request)
    return decide(
        request,
        incident=incident,
        title=_("Let the rules group it again"),
        explanation=_("What people moved is taken back for this incident; the rules decide what it belongs to."),
        form=NoteForm(request.POST or None),
        choices=[
            Choice(
                "revert",
                _("Back to the rules"),
                lambda note: regrouping_revert(incident=incident, actor=actor, reason=note),
            )
        ],
        done=_("The rules group this incident again."),
    )
