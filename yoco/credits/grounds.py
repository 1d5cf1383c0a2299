"""What an amount rests on, frozen in the chain beside it: the base, the rate, and the two people who signed.

Credits, fees and orders are rows that may change; the transaction that granted an amount says for good from what it was
computed and who answers for it, so that `ledger_verify` notices when such a row is changed afterwards.
"""

import json
from typing import Any

from yoco.credits.chain import timestamp
from yoco.credits.models import Credit, TransactionKind

GRANTS = (TransactionKind.ISSUE, TransactionKind.FIX)
GROUNDED = (*GRANTS, TransactionKind.APPROVE)


def grounds_of(*, credit: Credit, kind: TransactionKind, base_minor: int | None) -> dict[str, Any]:
    """The grounds of an `issue`, an `approve` or a `fix` of this credit as it is now; an `issue` has one signature.

    `base_minor` is what the rate was taken of, in minor units: the year's fees, or the amount of the credit's order.
    """
    approved = kind != TransactionKind.ISSUE
    return {
        "approved_at": timestamp(credit.approved_at) if approved and credit.approved_at else None,
        "approved_by": str(credit.approved_by_id) if approved and credit.approved_by_id else None,
        "base_minor": base_minor,
        "issued_at": timestamp(credit.issued_at) if credit.issued_at else None,
        "issued_by": str(credit.issued_by_id) if credit.issued_by_id else None,
        "order": str(credit.amount_order_id) if kind == TransactionKind.FIX else None,
        "rate": [credit.terms.credit_rate_num, credit.terms.credit_rate_den],
        "rounding": credit.terms.rounding,
        "terms_version": credit.terms.version,
    }


def grounds_text(grounds: dict[str, Any]) -> str:
    """The text that a transaction stores and hashes: JSON with sorted keys and no spaces."""
    return json.dumps(grounds, sort_keys=True, separators=(",", ":"))
