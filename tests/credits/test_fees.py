"""The fees of a year: recorded, corrected with a reason after its close, left alone once a credit rests on them."""

import pytest

from tests.credits import books as make
from tests.people import World
from yoco.contracts.models import ContractYear
from yoco.core.models import AuditEntry
from yoco.core.problem import DomainError
from yoco.credits.services import credit_issue, credit_reverse, year_fees_record


def fees(year: ContractYear) -> int | None:
    return ContractYear.objects.get(pk=year.pk).fees_minor


def closed(year: ContractYear) -> ContractYear:
    ContractYear.objects.filter(pk=year.pk).update(state="closed", closed_at=make.NOW)
    return year


def test_fees_are_recorded_and_corrected_while_the_year_is_open(books: World) -> None:
    for amount in (5_000_00, 6_000_00, 6_000_00):
        year_fees_record(year=books.year, fees_minor=amount, actor=books.account_manager)
    assert fees(books.year) == 6_000_00
    said = [entry.data for entry in AuditEntry.objects.filter(action="year.fees_recorded").order_by("at", "id")]
    assert said == [
        {"before": None, "fees_minor": 5_000_00},
        {"before": 5_000_00, "fees_minor": 6_000_00},
    ]


@pytest.mark.parametrize("amount", [-1, 2**63])
def test_fees_that_cannot_be_are_refused(books: World, amount: int) -> None:
    with pytest.raises(DomainError) as refused:
        year_fees_record(year=books.year, fees_minor=amount, actor=books.account_manager)
    assert refused.value.code == "bad_amount"
    assert fees(books.year) is None


def test_a_closed_year_takes_its_first_fees_and_changes_them_with_a_reason_only(books: World) -> None:
    year = closed(books.year)
    year_fees_record(year=year, fees_minor=100, actor=books.account_manager)
    with pytest.raises(DomainError) as refused:
        year_fees_record(year=year, fees_minor=200, actor=books.account_manager, reason=" ")
    assert (refused.value.code, fees(year)) == ("reason_missing", 100)
    year_fees_record(year=year, fees_minor=200, actor=books.account_manager, reason="An invoice was cancelled.")
    assert fees(year) == 200
    assert AuditEntry.objects.get(action="year.fees_restated").data == {
        "before": 100,
        "fees_minor": 200,
        "reason": "An invoice was cancelled.",
    }


def test_fees_that_a_credit_was_issued_on_stand_until_it_is_reversed(books: World) -> None:
    credit = make.issued(books, books.year, make.year_fees(closed(books.year), 1000))
    with pytest.raises(DomainError) as refused:
        year_fees_record(year=books.year, fees_minor=2000, actor=books.account_manager, reason="Wrong.")
    assert (refused.value.code, fees(books.year)) == ("fees_in_use", 1000)
    again = credit_reverse(credit_id=credit.pk, actor=books.account_manager, reason="Wrong fees.")
    year_fees_record(year=books.year, fees_minor=2000, actor=books.account_manager, reason="Wrong fees.")
    credit_issue(credit_id=again.pk, actor=books.account_manager, reason="Right fees.")
    assert fees(books.year) == 2000  # and the books verify, as after every test here
