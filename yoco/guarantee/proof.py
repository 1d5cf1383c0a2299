"""Proving what money rests on: the ledger's chain and sums, statements, snapshots; once a day without being asked."""

import datetime
import logging
import uuid

from yoco.core.jobs import LEDGER_VERIFY, job_claim, job_note
from yoco.credits.verify import Verification, ledger_verify
from yoco.guarantee.verify import snapshots_verify, statements_verify

log = logging.getLogger(__name__)

EVERY = datetime.timedelta(days=1)
LONGEST = datetime.timedelta(hours=1)


def books_prove(*, contract_id: uuid.UUID | None = None) -> tuple[Verification, list[str]]:
    """What was checked of one contract, or of all, and the rows that do not hold. A proof of all is noted."""
    broken = [str(row) for row in statements_verify(contract_id=contract_id)]
    broken += [str(row) for row in snapshots_verify(contract_id=contract_id)]
    ledger = ledger_verify(contract_id=contract_id)
    broken += [str(row) for row in ledger.broken]
    for row in broken:
        log.error("The books do not hold: %s", row)
    if contract_id is None:
        job_note(name=LEDGER_VERIFY, ok=not broken, detail="\n".join(broken[:20]))
    return ledger, broken


def proof_start(*, as_of: datetime.datetime) -> int:
    """Has the books proved where that is due. Returns 1 if it started."""
    from yoco.guarantee.tasks import ledger_prove

    if not job_claim(name=LEDGER_VERIFY, every=EVERY, longest=LONGEST, as_of=as_of):
        return 0
    ledger_prove.delay()
    return 1
