"""Writing credits: propose, issue, approve, fix, apply, reinstate, expire, reverse, settle.

Each function is one transaction: state, ledger, audit log and outbox together, or nothing. Retrying with the same
idempotency key and content returns the earlier result. The desk re-authenticates whoever signs; here two different
people must have signed.
"""

from yoco.credits.services.deciding import (
    credit_approve,
    credit_issue,
    credit_propose,
    credit_restated,
    credit_reverse,
    credit_settle,
)
from yoco.credits.services.fees import year_fees_record
from yoco.credits.services.paying import (
    credit_apply,
    credits_expire,
    credits_fix,
    credits_reinstate,
    credits_sweep,
)

__all__ = [
    "credit_apply",
    "credit_approve",
    "credit_issue",
    "credit_propose",
    "credit_restated",
    "credit_reverse",
    "credit_settle",
    "credits_expire",
    "credits_fix",
    "credits_reinstate",
    "credits_sweep",
    "year_fees_record",
]
