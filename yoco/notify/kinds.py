"""The kinds of events that leave the service: what they are called, and which notices people get by e-mail.

An event of a kind that is not listed here stays inside.
"""

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from yoco.accounts.models import Role

Word = str | Promise

TEST = "webhook.test"

# Every kind that an endpoint can be told of, with its name for people.
WEBHOOK_KINDS: dict[str, Word] = {
    "incident.unaccounted": _("Unaccounted incidents opened"),
    "incident.commented": _("Comment on an incident"),
    "exclusion.proposed": _("Exclusion proposed"),
    "exclusion.accepted": _("Exclusion accepted"),
    "exclusion.rejected": _("Exclusion rejected"),
    "exclusion.withdrawn": _("Exclusion withdrawn"),
    "dispute.raised": _("Objection raised"),
    "dispute.accepted": _("Objection upheld"),
    "dispute.rejected": _("Objection turned down"),
    "dispute.withdrawn": _("Objection withdrawn"),
    "statement.created": _("Contract year closed with a statement"),
    "statement.restated": _("Statement revised"),
    "credit.proposed": _("Credit proposed"),
    "credit.issued": _("Credit issued"),
    "credit.approved": _("Credit approved"),
    "credit.amount_fixed": _("Amount of a credit fixed"),
    "credit.amount_unfixed": _("Amount of a credit open again"),
    "credit.applied": _("Credit applied to an order"),
    "credit.reinstated": _("Credit reinstated"),
    "credit.reversed": _("Credit reversed"),
    "credit.expired": _("Credit expired"),
}

# What a member switches on and off: topics, each with the kinds it covers.
TOPICS: dict[str, Word] = {
    "credits": _("Credits issued, approved and applied"),
    "statements": _("Years closed and statements revised"),
    "disputes": _("Decisions on objections"),
    "unaccounted": _("Unaccounted incidents"),
    "comments": _("Comments on incidents"),
    "webhooks": _("Webhooks that were disabled (owners and administrators)"),
}
TOPIC_OF: dict[str, str] = {
    "credit.issued": "credits",
    "credit.approved": "credits",
    "credit.applied": "credits",
    "statement.created": "statements",
    "statement.restated": "statements",
    "dispute.accepted": "disputes",
    "dispute.rejected": "disputes",
    "incident.unaccounted": "unaccounted",
    "incident.commented": "comments",
    "webhook.disabled": "webhooks",
}
# The least role that gets a topic; any member the others.
ROLE_FOR: dict[str, Role] = {"webhooks": Role.ADMIN}
