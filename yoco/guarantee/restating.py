"""What a restatement changes: computed by writing it, and taken back where it is only to be seen.

A closed year is restated from the facts and the rules of today. Preview and confirmation run the same code, and a hash
of what was shown tells whether anything changed in between.
"""

import datetime
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from django.db import transaction
from django.db.models import Max
from django.utils.translation import gettext as _

from yoco.accounts.models import User
from yoco.contracts.locks import contracts_lock
from yoco.contracts.models import ContractYear
from yoco.core.problem import DomainError
from yoco.credits.models import Credit, CreditState, LedgerTransaction
from yoco.credits.selectors import credit_amount_expected, credit_balance, credit_of_year, transactions_of_contract
from yoco.guarantee.models import Statement
from yoco.guarantee.services import year_restate
from yoco.guarantee.statements import canonical_json, sha256_of

T = TypeVar("T")
# What becomes of the year's credit. `questioned`: it was used, so people settle it; `confirmed`: the question is over.
CreditEffect = Literal["none", "proposed", "reversed", "questioned", "confirmed"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an incident stands in one revision. Only the lead of a unit is counted."""

    outcome: str
    rule: str
    lead: bool


@dataclass(frozen=True, slots=True)
class Move:
    """An incident that stands elsewhere in the later revision; None where a revision does not have it."""

    incident: uuid.UUID
    started_at: datetime.datetime
    before: Place | None
    after: Place | None


@dataclass(frozen=True, slots=True)
class Differences:
    """The incidents that moved, in the order in which they began, and how many others differ in cost or evidence."""

    moves: list[Move]
    others: int


def differences(before: str, after: str) -> Differences:
    """What differs between the incidents of two canonical statements."""
    old, new = ({row["id"]: row for row in json.loads(text)["incidents"]} for text in (before, after))
    moves, others = [], 0
    for key in old.keys() | new.keys():
        stood, stands = (_place(rows.get(key)) for rows in (old, new))
        if stood != stands:
            row = new.get(key) or old[key]
            moves.append(Move(uuid.UUID(key), datetime.datetime.fromisoformat(row["started_at"]), stood, stands))
        elif old[key] != new[key]:
            others += 1
    return Differences(sorted(moves, key=lambda move: (move.started_at, str(move.incident))), others)


def _place(row: dict[str, Any] | None) -> Place | None:
    return Place(row["outcome"], row["rule"], row["lead"]) if row is not None else None


@dataclass(frozen=True, slots=True)
class Restatement:
    """The next revision beside the one before it, and what follows for the year's credit, in minor units."""

    before: Statement
    after: Statement
    differences: Differences
    effect: CreditEffect
    credit: Credit | None
    minor: int | None
    entries: list[LedgerTransaction]
    sha256: str

    @property
    def needs_second(self) -> bool:
        """Nobody alone moves money in the books or takes away what a customer was told is owed.

        A new proposal needs two people later, when it is issued and approved.
        """
        return bool(self.entries) or self.effect in ("reversed", "questioned")


def restatement_write(*, year: ContractYear, reason: str, actor: User, shown: str | None = None) -> Restatement:
    """Restates a closed year by hand. The caller has a transaction.

    `shown` is the hash of the preview that the person has seen. Raises DomainError if this would change something else,
    and as `year_restate`.
    """
    contracts_lock([year.contract_id])
    before = Statement.objects.filter(year=year).order_by("-revision").first()
    credit = credit_of_year(year_id=year.pk)
    stood = _credit_stands(credit)
    worth = credit_amount_expected(credit=credit) if credit is not None else None
    books = LedgerTransaction.objects.filter(contract=year.contract_id)
    last = books.aggregate(last=Max("sequence"))["last"] or 0
    after = year_restate(year=year, reason=reason, actor=actor)
    assert before is not None, "only a year with a statement is restated"
    now = credit_of_year(year_id=year.pk)
    entries = list(transactions_of_contract(contract=year.contract).filter(sequence__gt=last))
    effect = _effect(credit, now)
    concerned = now or credit
    minor = credit_amount_expected(credit=now) if now is not None else worth
    found = sha256_of(
        canonical_json(
            {
                "before": before.sha256,
                "after": [after.resolved, after.counted, after.verdict, str(after.terms_id)],
                "incidents": sha256_of(canonical_json(json.loads(after.canonical)["incidents"])),
                "credit": [stood, effect, minor],
                "entries": [
                    [entry.kind, [[row.account.kind, row.minor, str(row.order_id)] for row in entry.postings.all()]]
                    for entry in entries
                ],
            }
        )
    )
    if shown is not None and shown != found:
        raise DomainError(
            _("Something has changed since this was shown. Look at what it would do now, and decide again."),
            code="stale",
        )
    told = differences(before.canonical, after.canonical)
    return Restatement(before, after, told, effect, concerned if effect != "none" else None, minor, entries, found)


def restatement_preview(*, year: ContractYear, reason: str, actor: User) -> Restatement:
    """What restating would do: it is written, looked at and taken back. Raises DomainError as `restatement_write`."""
    return taken_back(lambda: restatement_write(year=year, reason=reason, actor=actor))


def taken_back(step: Callable[[], T]) -> T:
    """What `step` returns; nothing of it stays."""
    with transaction.atomic():
        found = step()
        transaction.set_rollback(True)
    return found


def _credit_stands(credit: Credit | None) -> list[Any] | None:
    if credit is None:
        return None
    balance = credit_balance(credit=credit)
    return [
        str(credit.pk),
        credit.state,
        credit.review_since is not None,
        balance.awaiting,
        balance.available,
        balance.applied,
    ]


def _effect(before: Credit | None, after: Credit | None) -> CreditEffect:
    if before is None or after is None:
        if before is None and after is None:
            return "none"
        return "proposed" if after is not None and after.state == CreditState.PROPOSED else "reversed"
    if before.review_since == after.review_since:
        return "none"
    return "questioned" if after.review_since is not None else "confirmed"
