"""The one lock of a contract, so that locks are always taken in the same order."""

import uuid
from collections.abc import Collection

from django.db import connection

from yoco.contracts.models import Contract


def contracts_lock(contract_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, Contract]:
    """Until the transaction ends, no other one places incidents of these contracts, closes their years or changes them.

    PostgreSQL locks the rows, in the order of their keys, and leaves foreign keys to them free; SQLite's IMMEDIATE
    transaction holds the only write lock there is. Returns the contracts as they are under the lock.

    Raises RuntimeError outside a transaction.
    """
    if not connection.in_atomic_block:
        raise RuntimeError("A contract is locked inside a transaction only.")
    rows = Contract.objects.select_for_update(no_key=True).filter(pk__in=contract_ids).order_by("pk")
    return {contract.pk: contract for contract in rows}
