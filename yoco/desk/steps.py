"""A step that moves money: shown as it will happen, confirmed, then done by its service.

The preview runs the very service and rolls it back, so it cannot show anything else than what the confirmation does.
"""

from collections.abc import Callable
from dataclasses import dataclass

from django.db import transaction
from django.db.models import Max

from yoco.contracts.models import Contract
from yoco.core.problem import DomainError
from yoco.credits.models import LedgerTransaction
from yoco.credits.selectors import transactions_of_contract


@dataclass(frozen=True, slots=True)
class Preview:
    """The ledger entries that a step would make, or why it is refused."""

    entries: list[LedgerTransaction]
    refused: str = ""


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
