"""Holds each credit against its entries: state, amount, people, order, statement and terms.

The amount of a grant is computed again from its base under the credit's terms (`guarantee.verify` compares those with
what the statement froze), and each signature with the entry or, before anything is posted, with the audit log.
"""

import json
import uuid
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from yoco.contracts.models import CreditBase
from yoco.core.models import AuditEntry
from yoco.credits.grounds import GRANTS, grounds_of
from yoco.credits.models import AccountKind, Credit, CreditState, TransactionKind
from yoco.credits.rows import ROWS_AT_ONCE, StoredGrant, grants_stored, sums_stored
from yoco.credits.selectors import credit_minor_of

EMPTY = (CreditState.PROPOSED, CreditState.REVERSED)


def credits_faults(*, contract_id: uuid.UUID | None, statements: dict[str, str]) -> Iterator[tuple[uuid.UUID, str]]:
    """Every credit of one contract, or of all, that contradicts its books: its id, and what does not hold."""
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for key, kind, minor in sums_stored(contract_id):
        sums[key, kind] += minor
    grants: dict[str, list[StoredGrant]] = defaultdict(list)
    for grant in grants_stored(contract_id):
        grants[grant.credit].append(grant)
    credits = Credit.objects.select_related("year", "terms", "amount_order", "statement").order_by("proposed_at", "id")
    credits = credits.defer("statement__canonical", "statement__summary")
    if contract_id is not None:
        credits = credits.filter(year__contract_id=contract_id)
    unposted: list[Credit] = []
    for credit in credits.iterator(chunk_size=ROWS_AT_ONCE):
        books = {kind: sums[str(credit.pk), kind.value] for kind in AccountKind}
        books[AccountKind.GRANTED] *= -1
        entries = [(entry, _frozen(entry)) for entry in grants.get(str(credit.pk), [])]
        faults = [*_state_faults(credit, books), *_terms_faults(credit, statements), *_amount_faults(credit, entries)]
        for reason in faults:
            yield credit.pk, reason
        signed = {name for _entry, frozen in entries for name in frozen}
        if (credit.issued_by_id and "issued_by" not in signed) or (
            credit.approved_by_id and "approved_by" not in signed
        ):
            unposted.append(credit)
    yield from _signatures_unposted(unposted)


def _state_faults(credit: Credit, books: dict[AccountKind, int]) -> Iterator[str]:
    """A state that its books contradict."""
    state = CreditState(credit.state)
    for kind, minor in books.items():
        if minor < 0:
            yield f"its account “{kind.value}” is below zero: {minor}"
    if state in EMPTY and any(books.values()):
        yield f"is {state.value}, but its books are not empty"
    if state != CreditState.ISSUED and books[AccountKind.AWAITING]:
        yield f"is {state.value}, but an amount still awaits approval"
    if state in (CreditState.ISSUED, CreditState.EXPIRED) and books[AccountKind.AVAILABLE]:
        yield f"is {state.value}, but an amount is still available"
    if state not in EMPTY and not books[AccountKind.GRANTED] and (expected := _amount(credit)):
        yield f"is {state.value}, but the transaction that granted its amount is missing: {expected}"
    if books[AccountKind.GRANTED] and _base(credit) is None:
        yield "has an amount, but the fees or the order it was computed from are missing"


def _terms_faults(credit: Credit, statements: dict[str, str]) -> Iterator[str]:
    """A statement or terms that are not those it was proposed under."""
    if statements.get(str(credit.statement_id)) != credit.statement_sha256:
        yield "its statement is missing or has another hash"
    elif (credit.year_id, credit.terms_id) != (credit.statement.year_id, credit.statement.terms_id):
        yield "its year or its terms are not those of its statement"
    if credit.base != credit.terms.credit_base:
        yield "its base is not that of its terms"


def _base(credit: Credit) -> int | None:
    """What the rate is taken of, in minor units; None while it is not known."""
    if credit.base == CreditBase.YEAR_FEES:
        return credit.year.fees_minor if credit.issued_at else None
    return credit.amount_order.amount_minor if credit.amount_order else None


def _amount(credit: Credit) -> int:
    base = _base(credit)
    return credit_minor_of(terms=credit.terms, base_minor=base) if base is not None else 0


def _frozen(entry: StoredGrant) -> dict[str, Any]:
    """What an entry says about its credit for good. Version 1 of the chain names only who acted."""
    if entry.version > 1:
        try:
            grounds: dict[str, Any] = dict(json.loads(entry.grounds or ""))
        except (TypeError, ValueError):
            return {}  # the entry's hash cannot hold either
        return grounds
    signature = {TransactionKind.ISSUE: "issued_by", TransactionKind.APPROVE: "approved_by"}.get(
        TransactionKind(entry.kind)
    )
    return {signature: entry.actor} if signature else {}


def _amount_faults(credit: Credit, entries: list[tuple[StoredGrant, dict[str, Any]]]) -> Iterator[str]:
    """Amounts that do not follow from their base, and whatever the credit says otherwise than its entries."""
    grants = [entry for entry, _frozen in entries if entry.kind in GRANTS]
    live = _base(credit) if credit.state != CreditState.REVERSED else None
    for entry, frozen in entries:
        standing = live is not None and (not grants or entry is grants[-1] or entry.kind not in GRANTS)
        base = live if standing else frozen.get("base_minor")
        if entry.kind in GRANTS and base is not None:
            minor = credit_minor_of(terms=credit.terms, base_minor=base)
            if entry.minor != minor:
                rate = f"{credit.terms.credit_rate_num}/{credit.terms.credit_rate_den}"
                yield f"transaction {entry.transaction} grants {entry.minor}, but {rate} of {base} is {minor}"
        if standing and entry.kind == TransactionKind.FIX and entry.order != str(credit.amount_order_id):
            yield f"names another order than transaction {entry.transaction}, which fixed its amount"
        says = grounds_of(credit=credit, kind=TransactionKind(entry.kind), base_minor=base)
        says["order"] = entry.order
        for name, value in frozen.items():
            if says.get(name) != value:
                yield f"says {name} {says.get(name)}, but transaction {entry.transaction} was hashed with {value}"


def _signatures_unposted(credits: list[Credit]) -> Iterator[tuple[uuid.UUID, str]]:
    """Before an amount is posted, the audit log says who signed."""
    for start in range(0, len(credits), ROWS_AT_ONCE):
        rows = credits[start : start + ROWS_AT_ONCE]
        said = {
            (subject, action): actor
            for subject, action, actor in AuditEntry.objects.filter(
                subject_type=Credit._meta.label_lower,
                subject_id__in=[str(credit.pk) for credit in rows],
                action__in=["credit.issued", "credit.approved"],
            ).values_list("subject_id", "action", "actor_id")
        }
        for credit in rows:
            for action, person in (("credit.issued", credit.issued_by_id), ("credit.approved", credit.approved_by_id)):
                if person is not None and said.get((str(credit.pk), action)) != person:
                    yield credit.pk, f"was signed by {person}, but the audit log does not say so ({action})"
