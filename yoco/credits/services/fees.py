"""The fees of a contract year, the base of a credit under `year_fees`."""

from django.db import transaction
from django.utils.translation import gettext as _

from yoco.accounts.models import User
from yoco.contracts.models import ContractYear, CreditBase, YearState
from yoco.core.audit import audit_record
from yoco.core.problem import DomainError
from yoco.credits.ledger import contract_lock
from yoco.credits.models import Credit, CreditState

LARGEST = 2**62  # leaves room for sums in a bigint


@transaction.atomic
def year_fees_record(*, year: ContractYear, fees_minor: int, actor: User | None, reason: str = "") -> ContractYear:
    """Records the fees of a year in minor units. The same amount again changes nothing.

    Once the year is closed, recorded fees change with a `reason` only. Once a credit was issued on them they do not
    change at all: that credit must be reversed first, which proposes it afresh. Raises DomainError otherwise, and for
    fees that are negative or too large to be kept.
    """
    if not 0 <= fees_minor <= LARGEST:
        raise DomainError(_("Fees are zero or more, and no larger than can be kept."), code="bad_amount")
    contract_lock(year.contract_id)
    year = ContractYear.objects.select_related("contract").get(pk=year.pk)
    before = year.fees_minor
    if before == fees_minor:
        return year
    restated = before is not None and year.state == YearState.CLOSED
    if restated and not reason.strip():
        raise DomainError(
            _("The year is closed. To correct its fees, say why; the audit log keeps it."), code="reason_missing"
        )
    issued = Credit.objects.filter(year=year, base=CreditBase.YEAR_FEES).exclude(
        state__in=[CreditState.PROPOSED, CreditState.REVERSED]
    )
    if before is not None and issued.exists():
        raise DomainError(
            _("A credit was issued on these fees. Reverse it first; then correct the fees and issue it again."),
            code="fees_in_use",
        )
    year.fees_minor = fees_minor
    year.save(update_fields=["fees_minor"])
    audit_record(
        action="year.fees_restated" if restated else "year.fees_recorded",
        actor=actor,
        subject=year,
        organisation_id=year.contract.organisation_id,
        data={"before": before, "fees_minor": fees_minor} | ({"reason": reason.strip()} if reason.strip() else {}),
    )
    return year
