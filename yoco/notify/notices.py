"""The words of a notice, in the active language: a subject, sentences, and the page that shows the rest."""

from dataclasses import dataclass, field

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from yoco.core.links import absolute
from yoco.core.models import OutboxEvent
from yoco.guarantee.labels import verdict_words
from yoco.incidents.models import Dispute, Incident
from yoco.notify.facts import contract_of, statement_of, year_of
from yoco.notify.models import Endpoint


@dataclass
class Notice:
    subject: str
    sentences: list[str] = field(default_factory=list)
    link: str = ""
    quote: str = ""  # what a person wrote


def notice_of(event: OutboxEvent) -> Notice | None:
    """What a notice of this event says; None if what it was about is gone."""
    area = event.kind.partition(".")[0]
    return {
        "credit": _credit,
        "statement": _statement,
        "dispute": _dispute,
        "incident": _incident,
        "webhook": _webhook,
    }[area](event)


def _credit(event: OutboxEvent) -> Notice | None:
    year = year_of(event)
    if year is None:
        return None
    about = {"year": year.number, "contract": year.contract.number}
    subject, sentence = {
        "credit.issued": (
            _("A credit for year %(year)s of %(contract)s was issued") % about,
            _("A second person at our side checks it; then it can pay your orders."),
        ),
        "credit.approved": (
            _("A credit for year %(year)s of %(contract)s was approved") % about,
            _("From now on it can pay your renewals and expansions."),
        ),
        "credit.applied": (
            _("A credit for year %(year)s of %(contract)s was applied to an order") % about,
            _("The statement of account shows what it paid and what is left."),
        ),
    }[event.kind]
    return Notice(subject, [sentence], absolute("portal:credits", year.contract_id))


def _statement(event: OutboxEvent) -> Notice | None:
    statement, year = statement_of(event), year_of(event)
    if statement is None or year is None:
        return None
    about = {"year": year.number, "contract": year.contract.number, "revision": statement.revision}
    if event.kind == "statement.created":
        subject = _("Year %(year)s of %(contract)s is closed") % about
    else:
        subject = _("The statement of year %(year)s of %(contract)s was revised (revision %(revision)s)") % about
    share = ngettext(
        "%(resolved)s of %(counted)s failure was resolved without loss.",
        "%(resolved)s of %(counted)s failures were resolved without loss.",
        statement.counted,
    ) % {"resolved": statement.resolved, "counted": statement.counted}
    return Notice(
        subject,
        [verdict_words(statement.verdict, closed=True), share],
        absolute("portal:statement", year.contract_id, year.pk, statement.revision),
    )


def _dispute(event: OutboxEvent) -> Notice | None:
    dispute = Dispute.objects.select_related("incident__contract").filter(pk=event.subject_id).first()
    if dispute is None:
        return None
    about = {"contract": dispute.incident.contract.number}
    if event.kind == "dispute.accepted":
        subject = _("Your objection on %(contract)s was upheld") % about
    else:
        subject = _("Your objection on %(contract)s was turned down") % about
    return Notice(
        subject,
        [_("The reason that was given:")],
        absolute("portal:incident", dispute.incident.contract_id, dispute.incident.public_id),
        dispute.decision_note,
    )


def _incident(event: OutboxEvent) -> Notice | None:
    contract = contract_of(event)
    if contract is None:
        return None
    if event.kind == "incident.commented":
        return Notice(
            _("A comment on an incident of %(contract)s") % {"contract": contract.number},
            [_("Someone wrote a comment. The page of the incident shows it.")],
            absolute("portal:incident", contract.pk, event.payload["incident"]),
        )
    names = event.payload["incidents"]
    number = len(names)
    subject = ngettext(
        "%(n)s unaccounted incident on %(contract)s", "%(n)s unaccounted incidents on %(contract)s", number
    ) % {"n": number, "contract": contract.number}
    first = Incident.objects.select_related("placement").filter(contract=contract, public_id=names[0]).first()
    year_id = first.placement.year_id if first else None
    link = absolute("portal:home")
    if number == 1:
        link = absolute("portal:incident", contract.pk, names[0])
    elif year_id:
        link = absolute("portal:incidents", contract.pk, year_id) + "?outcome=unaccounted"
    return Notice(
        subject,
        [
            _(
                "A run fell silent, or reports are missing, and nobody has said why. Until the reports arrive, it "
                "counts as the terms of the contract say."
            ),
            _("Check that the agent runs and can reach the service."),
        ],
        link,
    )


def _webhook(event: OutboxEvent) -> Notice | None:
    endpoint = Endpoint.objects.filter(pk=event.subject_id).first()
    if endpoint is None:
        return None
    return Notice(
        _("The webhook “%(name)s” was disabled") % {"name": endpoint.name},
        [
            _("It has failed for days, or answered that it is gone for good. Nothing is sent to it any more."),
            _("Mend the receiver, enable the endpoint, then replay what was given up."),
        ],
        absolute("portal:webhook", endpoint.organisation_id, endpoint.pk),
    )
