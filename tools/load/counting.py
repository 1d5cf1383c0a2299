"""The count at the end: what was sent against what is there. Needs Django with the environment of the service."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

from django.db.models import Count

from tools.load.receiver import Receiver
from tools.load.tenants import Tenants
from yoco.contracts.models import Contract
from yoco.core.models import AuditEntry, OutboxEvent, OutboxPending
from yoco.credits.models import Credit, LedgerTransaction
from yoco.credits.verify import ledger_verify
from yoco.guarantee.models import Statement
from yoco.guarantee.verify import statements_verify
from yoco.incidents.models import Incident, Origin, RawReport
from yoco.notify.models import DeliveryState, MailDelivery, WebhookDelivery

STEPS = ("credit.proposed", "credit.issued", "credit.approved", "credit.amount_fixed", "credit.applied")


def waiting(tenants: Tenants) -> dict[str, int]:
    """What is still on its way: credits to apply, events, deliveries."""
    applied = LedgerTransaction.objects.filter(kind="apply", contract__number__in=tenants.over).count()
    return {
        "credits": len(tenants.over) - applied,
        "events": OutboxPending.objects.count(),
        "webhooks": WebhookDelivery.objects.filter(state=DeliveryState.PENDING).count(),
        "e-mails": MailDelivery.objects.filter(state=DeliveryState.PENDING).count(),
    }


def reports_count(agents: list[dict[str, Any]], problems: list[str]) -> dict[str, int]:
    """Each report that an agent had on disk is stored once under its number, each incident once and resolved."""
    sent = lost = double = 0
    for agent in agents:
        stored = Counter(
            RawReport.objects.filter(agent_id=agent["agent_id"], boot_id=agent["boot_id"]).values_list("seq", flat=True)
        )
        sent += agent["reports"]
        lost += len(set(range(1, agent["reports"] + 1)) - stored.keys())
        double += sum(stored.values()) - len(stored)
        if not agent["flushed"]:
            problems.append(f"{agent['agent_id']} still had something in its spool at the end")
        if stored.keys() - set(range(1, agent["reports"] + 1)):
            problems.append(f"{agent['agent_id']}: reports are stored that it never promised")
    _exactly("reports", lost, double, problems)
    conflicts = RawReport.objects.filter(conflict=True).count()
    _none("reports in conflict", conflicts, problems)
    told = Counter(uuid.UUID(name) for agent in agents for name in agent["incidents"])
    seen = Counter(Incident.objects.filter(public_id__in=told).values_list("public_id", flat=True))
    _compare("incidents", told, seen, problems)
    _none("incidents without an end", Incident.objects.filter(public_id__in=told, resumed_at=None).count(), problems)
    _none("runs taken for silent", Incident.objects.filter(origin=Origin.SILENCE).count(), problems)
    return {"sent": sent, "lost": lost, "double": double, "incidents": len(told)}


def books_count(tenants: Tenants, problems: list[str]) -> dict[str, int]:
    """Each year that was over has one statement and one credit, each step of it told once, each entry posted once."""
    contracts = dict(Contract.objects.filter(number__in=tenants.over).values_list("pk", "number"))
    wanted = Counter(tenants.over)
    _compare("contracts", wanted, Counter(contracts.values()), problems)
    statements = Statement.objects.filter(year__contract__in=contracts).values_list("year__contract__number", flat=True)
    _compare("statements", wanted, Counter(statements), problems)
    credits = list(Credit.objects.filter(year__contract__in=contracts).values_list("pk", "year__contract__number"))
    _compare("credits", wanted, Counter(number for _, number in credits), problems)
    steps = Counter((str(pk), step) for pk, _ in credits for step in STEPS)
    for name, log, field in (("audit entries", AuditEntry, "action"), ("events", OutboxEvent, "kind")):
        rows = log.objects.filter(subject_type="credits.credit").values_list("subject_id", field)
        _compare(f"{name} of credits", steps, Counter(rows), problems)
    kinds = LedgerTransaction.objects.filter(contract__in=contracts).values_list("contract__number", "kind")
    entries = Counter((number, kind) for number in wanted for kind in ("fix", "apply"))
    _compare("ledger entries", entries, Counter(kinds), problems)
    verification = ledger_verify()
    if not verification.holds:
        problems.append(f"the ledger does not hold: {verification.broken}")
    if broken := statements_verify():
        problems.append(f"statements do not verify: {broken[:3]}")
    return {"contracts": len(wanted), "credits": len(credits), "ledger_entries": verification.transactions}


def messages_count(receiver: Receiver, problems: list[str]) -> dict[str, int]:
    """Each event that a customer is told of arrived at the customer's receiver; e-mails were sent."""
    told = {
        (url[url.index("/hook/") :], str(event))
        for url, event in WebhookDelivery.objects.values_list("endpoint__url", "event_id")
    }
    arrived = set(receiver.got)
    _none("webhook events that never arrived", len(told - arrived), problems)
    _none("webhooks that nobody was to be told of", len(arrived - told), problems)
    _none("webhooks with a bad signature", receiver.refused, problems)
    events = OutboxEvent.objects.filter(kind__in=[*STEPS, "statement.created"]).count()
    _none("events of years and credits without a delivery", events - len(told), problems)
    unsent = [*WebhookDelivery.objects.exclude(state=DeliveryState.DELIVERED).values_list("pk", flat=True)]
    unsent += MailDelivery.objects.exclude(state=DeliveryState.DELIVERED).values_list("pk", flat=True)
    _none("messages not delivered", len(unsent), problems)
    repeated = WebhookDelivery.objects.values("event_id", "endpoint").annotate(n=Count("pk")).filter(n__gt=1).order_by()
    _none("deliveries made twice", repeated.count(), problems)
    return {
        "webhook_events": len(told),
        "webhook_requests": sum(receiver.got.values()),
        "mails": MailDelivery.objects.count(),
    }


def _compare(what: str, wanted: Counter[Any], found: Counter[Any], problems: list[str]) -> None:
    _exactly(what, (wanted - found).total(), (found - wanted).total(), problems)


def _exactly(what: str, lost: int, double: int, problems: list[str]) -> None:
    if lost or double:
        problems.append(f"{what}: {lost} lost, {double} too many")


def _none(what: str, number: int, problems: list[str]) -> None:
    if number:
        problems.append(f"{number} {what}")
