"""What entries of the audit log were done to: a name and the page that shows it, found for a whole page at once."""

import uuid
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Q, QuerySet
from django.urls import reverse
from django.utils.translation import gettext as _

from yoco.accounts.models import Invitation, User
from yoco.contracts.models import Contract, ContractYear, GuaranteeTerms, Order
from yoco.core.models import AuditEntry
from yoco.credits.models import Credit
from yoco.guarantee.models import ImportFile, Proposal, Snapshot, StatementShare
from yoco.incidents.models import Incident


@dataclass(frozen=True, slots=True)
class Subject:
    """`url` is empty where the reader has no page for it."""

    name: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class _Year:
    pk: uuid.UUID
    number: int
    contract: uuid.UUID
    contract_number: str
    currency: str


@dataclass(slots=True)
class Known:
    """What the entries of one page name, by id."""

    people: dict[uuid.UUID, User] = field(default_factory=dict)
    addresses: dict[uuid.UUID, str] = field(default_factory=dict)
    contracts: dict[uuid.UUID, tuple[uuid.UUID, str, str]] = field(default_factory=dict)
    """Of a contract, of its terms, an order, an imported file or a proposal: the contract's id, number and currency."""
    years: dict[uuid.UUID, _Year] = field(default_factory=dict)
    """Of a year, a credit, a snapshot, or a link to a statement."""
    incidents: dict[tuple[uuid.UUID, str], Incident] = field(default_factory=dict)
    """By organisation and, as the entry says it, row or `incident_id` of the reports."""


OF_CONTRACT: dict[str, tuple[type[Any], str]] = {
    "contracts.contract": (Contract, ""),
    "contracts.guaranteeterms": (GuaranteeTerms, "contract__"),
    "contracts.order": (Order, "contract__"),
    "guarantee.importfile": (ImportFile, "contract__"),
    "guarantee.proposal": (Proposal, "contract__"),
}
OF_YEAR: dict[str, tuple[type[Any], str]] = {
    "contracts.contractyear": (ContractYear, ""),
    "credits.credit": (Credit, "year__"),
    "guarantee.snapshot": (Snapshot, "year__"),
    "guarantee.statementshare": (StatementShare, "statement__year__"),
}


def known_of(*, entries: Collection[AuditEntry], people: Collection[User]) -> Known:
    """Five queries at most, of which one only for people beyond those that are at hand."""
    ids: dict[str, set[str]] = defaultdict(set)
    for entry in entries:
        ids[entry.subject_type].add(entry.subject_id)
    named = {person.pk: person for person in people}
    wanted = {uuid.UUID(entry.data["user"]) for entry in entries if "user" in entry.data}
    wanted |= {uuid.UUID(text) for text in ids["accounts.user"]}
    named |= {entry.actor.pk: entry.actor for entry in entries if entry.actor is not None}
    if missing := wanted - named.keys():
        named |= User.objects.in_bulk(missing)
    invited = Invitation.objects.filter(pk__in=ids["accounts.invitation"])
    contracts, years = _union(OF_CONTRACT, ids, _contract), _union(OF_YEAR, ids, _year)
    return Known(
        people=named,
        addresses=dict(invited.values_list("pk", "email")) if ids["accounts.invitation"] else {},
        contracts={row[0]: row[1:] for row in contracts},
        years={row[0]: _Year(*row[1:]) for row in years},
        incidents=_incidents(entries),
    )


def _contract(path: str) -> list[str]:
    return [f"{path}pk", f"{path}number", f"{path}currency"]


def _year(path: str) -> list[str]:
    return [f"{path}pk", f"{path}number", *(f"{path}contract__{name}" for name in ("pk", "number", "currency"))]


def _union(models: dict[str, tuple[type[Any], str]], ids: dict[str, set[str]], columns: Any) -> list[tuple[Any, ...]]:
    """Rows of several tables in one query: the id of each, then what it belongs to."""
    parts: list[QuerySet[Any]] = [
        model.objects.filter(pk__in=ids[label]).order_by().values_list("id", *columns(path))
        for label, (model, path) in models.items()
        if ids[label]
    ]
    return list(parts[0].union(*parts[1:], all=True)) if parts else []


def _incident_key(entry: AuditEntry) -> str:
    """The incident that an entry is about, or the first of several; empty for other entries."""
    if entry.subject_type == "incidents.incident":
        return entry.subject_id
    return str(entry.data.get("incident") or next(iter(entry.data.get("incidents", [])), ""))


def _incidents(entries: Collection[AuditEntry]) -> dict[tuple[uuid.UUID, str], Incident]:
    keys = {(entry.organisation_id, key) for entry in entries if (key := _incident_key(entry))}
    if not keys:
        return {}
    rows = Incident.objects.filter(
        Q(pk__in=[key for _org, key in keys if key.isdigit()])
        | Q(public_id__in=[key for _org, key in keys if not key.isdigit()]),
        contract__organisation__in={organisation for organisation, _key in keys},
    ).select_related("contract", "run")
    found: dict[tuple[uuid.UUID, str], Incident] = {}
    for row in rows:
        organisation = row.contract.organisation_id
        found |= {(organisation, str(row.pk)): row, (organisation, str(row.public_id)): row}
    return found


def subject_of(entry: AuditEntry, known: Known, *, desk: bool) -> Subject:
    """What this entry was done to. At the desk credits and contracts open there."""
    kind, organisation = entry.subject_type, entry.organisation_id
    if incident := known.incidents.get((organisation, _incident_key(entry))):  # type: ignore[arg-type]
        url = reverse("portal:incident", args=[incident.contract_id, incident.public_id])
        return Subject(f"{incident.contract.number} · {incident.run}", url)
    if kind == "accounts.user":
        return Subject(str(known.people.get(uuid.UUID(entry.subject_id), "")))
    if kind == "accounts.agentkey":
        return Subject(_("Keys"), reverse("portal:key", args=[organisation, entry.subject_id]))
    if kind == "notify.endpoint":
        url = "" if desk else reverse("portal:webhook", args=[organisation, entry.subject_id])
        return Subject(_("Webhooks"), url)
    if kind in ("accounts.organisation", "accounts.membership", "accounts.invitation"):
        return Subject(_("Members"), reverse("portal:organisation", args=[organisation]))
    if kind in OF_YEAR and (year := known.years.get(uuid.UUID(entry.subject_id))):
        name = f"{year.contract_number} · " + _("Year %(number)s") % {"number": year.number}
        return Subject(name, _year_url(entry, year, desk=desk))
    if kind in OF_CONTRACT and (found := known.contracts.get(uuid.UUID(entry.subject_id))):
        return Subject(found[1], _contract_url(entry, found[0], desk=desk))
    return Subject("")


def _year_url(entry: AuditEntry, year: _Year, *, desk: bool) -> str:
    if entry.subject_type == "guarantee.statementshare":
        return reverse("portal:statement", args=[year.contract, year.pk, entry.data["revision"]])
    if entry.subject_type == "credits.credit":
        if desk:
            return reverse("desk:credit", args=[entry.subject_id])
        return reverse("portal:credits", args=[year.contract])
    return reverse("portal:year", args=[year.contract, year.pk])


def _contract_url(entry: AuditEntry, contract: uuid.UUID, *, desk: bool) -> str:
    if entry.subject_type == "guarantee.importfile":
        return reverse("desk:import_file", args=[entry.subject_id]) if desk else ""
    if desk and entry.subject_type == "guarantee.proposal":
        return reverse("desk:proposal", args=[entry.subject_id])
    if desk:
        return reverse("desk:contract", args=[contract])
    name = "credits" if entry.subject_type == "contracts.order" else "terms"
    return reverse(f"portal:{name}", args=[contract])
