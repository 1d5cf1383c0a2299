"""What the desk's lists read."""

import datetime
from dataclasses import dataclass

from django.db.models import QuerySet

from yoco.contracts.models import Contract, ContractYear, YearState
from yoco.credits.models import Credit, CreditState
from yoco.incidents.models import Decision, Dispute


def credits_waiting(*, state: CreditState) -> QuerySet[Credit]:
    """Credits in one state, oldest first: the queue of those who must decide next."""
    return (
        Credit.objects.filter(state=state)
        .select_related("year__contract__organisation", "issued_by")
        .order_by("proposed_at", "id")
    )


def years_closing() -> QuerySet[ContractYear]:
    """Years that ended and wait for late reports, the earliest end first."""
    return (
        ContractYear.objects.filter(state=YearState.CLOSING)
        .select_related("contract__organisation")
        .order_by("ends_at", "id")
    )


def disputes_open() -> QuerySet[Dispute]:
    """Disputes that wait for a decision, oldest first."""
    return (
        Dispute.objects.filter(state=Decision.PENDING)
        .select_related("incident__contract__organisation", "incident__run", "raised_by")
        .order_by("raised_at", "id")
    )


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a contract's running year stands. The verdict and its figures are None for a year without guarantee."""

    contract: Contract
    year: ContractYear
    verdict: str | None = None
    share_floor: str | None = None
    resolved: int | None = None
    counted: int | None = None
    failures_still_allowed: int | None = None


def standings(*, at: datetime.datetime) -> list[Standing]:
    """Every contract's running year, those at risk first."""
    raise NotImplementedError
