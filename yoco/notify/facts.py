"""What a message may say about an event beside its ids: few facts, read from the rows at the time of reading."""

from typing import Any

from yoco.contracts.models import Contract, ContractYear
from yoco.core.models import OutboxEvent
from yoco.guarantee.models import Statement

STATEMENT_FACTS = ("revision", "sha256", "verdict", "counted", "resolved")
# A sweep after an outage can open thousands; the rest is in the API.
INCIDENTS_TOLD = 100


def contract_of(event: OutboxEvent) -> Contract | None:
    """The contract that an event is about, by its payload."""
    if year := year_of(event):
        return year.contract
    key = event.payload.get("contract")
    return Contract.objects.filter(pk=key).first() if key else None


def year_of(event: OutboxEvent) -> ContractYear | None:
    key = event.payload.get("year")
    return ContractYear.objects.select_related("contract").filter(pk=key).first() if key else None


def statement_of(event: OutboxEvent) -> Statement | None:
    key = event.payload.get("statement")
    return Statement.objects.defer("canonical", "summary").filter(pk=key).first() if key else None


def event_data(event: OutboxEvent) -> dict[str, Any]:
    """The `data` of a webhook: `organisation`, the ids of the event, and facts that do not change any more."""
    data: dict[str, Any] = {"organisation": str(event.organisation_id), **event.payload}
    subject = event.subject_type.rpartition(".")[2]
    data.setdefault(subject, event.subject_id)
    if "incidents" in data:
        data["count"] = len(data["incidents"])
        data["incidents"] = data["incidents"][:INCIDENTS_TOLD]
    year = year_of(event)
    contract = year.contract if year else contract_of(event)
    if contract is not None:
        data |= {"contract": str(contract.pk), "contract_number": contract.number}
    if year is not None:
        data["year_number"] = year.number
    if event.kind.startswith("statement.") and (statement := statement_of(event)):
        data |= {name: getattr(statement, name) for name in STATEMENT_FACTS}
    return data
