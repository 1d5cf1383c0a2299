"""A step that moves money or figures: shown as it will happen, confirmed, then done by its service.

The preview runs the very service and rolls it back, so it cannot show anything else than what the confirmation does.
"""

from collections.abc import Callable
from dataclasses import dataclass

from django.db import transaction
from django.db.models import Max

from yoco.contracts.models import Contract, ContractYear
from yoco.core.problem import DomainError
from yoco.credits.models import LedgerTransaction
from yoco.credits.selectors import transactions_of_contract
from yoco.guarantee.rules import DEFAULT_TERMS
from yoco.guarantee.tally import year_rules, year_verdict, years_tally


@dataclass(frozen=True, slots=True)
class Preview:
    """The ledger entries that a step would make, or why it is refused."""

    entries: list[LedgerTransaction]
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """A year's figures: k of n, and the verdict that they give."""

    resolved: int
    counted: int
    verdict: str


def figures_of(year: ContractYear) -> Figures:
    """The figures as the placements stand now; of a closed year, what a restatement would say."""
    rules, _ = year_rules(year)
    tally = years_tally(years=[year])[year.pk]
    return Figures(tally.k, tally.n(rules.terms or DEFAULT_TERMS), year_verdict(tally, rules).name)


@dataclass(frozen=True, slots=True)
class FiguresPreview:
    """A year's figures after a decision, or why it is refused."""

    after: Figures | None
    refused: str = ""


def figures_preview(*, year: ContractYear, step: Callable[[], object]) -> FiguresPreview:
    """Runs `step` and takes it back; returns what the year's figures were in between."""
    try:
        with transaction.atomic():
            step()
            after = figures_of(year)
            transaction.set_rollback(True)
    except DomainError as error:
        return FiguresPreview(after=None, refused=error.message)
    return FiguresPreview(after=after)


def step_preview(*, contract: Contract, step: Callable[[], object]) -> Preview:
    """Runs `step` and takes it back; returns the entries it made in the contract's books, with their postings."""
    try:
        with transaction.atomic():
            last = LedgerTransaction.objects.filter(contract=contract).aggregate(last=Max("sequence"))["last"] or 0
            step()
            entries = list(transactions_of_contract(contract=contract).filter(sequence__gt=last))
            transaction.set_rollback(True)
    except DomainError as error:
        return Preview(entries=[], refused=error.message)
    return Preview(entries=entries)
