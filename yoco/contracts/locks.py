"""The one lock of a contract, so that locks are always taken in the same order."""

import uuid
from collections.abc import Collection, Sequence

from django.db import connection
from django.db.models import QuerySet

from yoco.contracts.models import Contract, ContractYear, GuaranteeTerms
from yoco.core.compiled import compiled


def contracts_lock(contract_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, Contract]:
    """Until the transaction ends, no other one places incidents of these contracts, closes their years or changes them.

    PostgreSQL locks the rows, in the order of their keys, and leaves foreign keys to them free; SQLite's IMMEDIATE
    transaction holds the only write lock there is. Returns the contracts as they are under the lock.

    Raises RuntimeError outside a transaction.
    """
    if not connection.in_atomic_block:
        raise RuntimeError("A contract is locked inside a transaction only.")
    return {contract.pk: contract for contract in _rows_locked(contract_ids=contract_ids)}


def contracts_lock_with_terms(contract_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, Contract]:
    """As `contracts_lock`, with `years` and `terms` read under the lock, as if prefetched."""
    contracts = contracts_lock(contract_ids)
    if contracts:
        _attach(contracts, "years", _years(contract_ids=contract_ids))
        _attach(contracts, "terms", _terms(contract_ids=contract_ids))
    return contracts


def _attach(
    contracts: dict[uuid.UUID, Contract], name: str, rows: Sequence[ContractYear] | Sequence[GuaranteeTerms]
) -> None:
    for contract in contracts.values():
        own = getattr(contract, name).all()
        own._result_cache = [row for row in rows if row.contract_id == contract.pk]
        own._prefetch_done = True
        contract.__dict__.setdefault("_prefetched_objects_cache", {})[name] = own


@compiled
def _years(*, contract_ids: Collection[uuid.UUID]) -> QuerySet[ContractYear]:
    return ContractYear.objects.filter(contract__in=contract_ids)


@compiled
def _terms(*, contract_ids: Collection[uuid.UUID]) -> QuerySet[GuaranteeTerms]:
    return GuaranteeTerms.objects.filter(contract__in=contract_ids)


@compiled
def _rows_locked(*, contract_ids: Collection[uuid.UUID]) -> QuerySet[Contract]:
    return Contract.objects.select_for_update(no_key=True).filter(pk__in=contract_ids).order_by("pk")
