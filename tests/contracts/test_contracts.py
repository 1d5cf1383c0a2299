"""Contracts, versions of their terms, their years and orders: what can be made, and what is refused with a sentence."""

import datetime
import itertools
from typing import Any

import pytest
import time_machine
from django.db import DatabaseError, IntegrityError, transaction

from tests.people import World
from yoco.accounts.models import Organisation
from yoco.contracts import services
from yoco.contracts.calendar import anniversary, year_spans
from yoco.contracts.models import Contract, GuaranteeTerms, Order
from yoco.contracts.selectors import year_closes_at, year_is_partial, year_terms
from yoco.core.models import AuditEntry
from yoco.core.money import Money
from yoco.core.problem import DomainError

D = datetime.date
NOW = datetime.datetime(2026, 11, 30, 12, tzinfo=datetime.UTC)


@pytest.fixture(autouse=True)
def clock() -> Any:
    with time_machine.travel(NOW, tick=False):
        yield


def make(world: World, **changes: Any) -> Contract:
    fields: dict[str, Any] = {
        "organisation": world.organisation,
        "number": "C-1",
        "name": "Cluster",
        "currency": "EUR",
        "time_zone": "Europe/Madrid",
        "starts_on": D(2026, 9, 15),
        "ends_on": D(2029, 9, 15),
        "guarantee_from": D(2026, 9, 15),
        "actor": world.account_manager,
    }
    return services.contract_create(**{**fields, **changes})


def spans(contract: Contract) -> list[tuple[D, D]]:
    return list(contract.years.order_by("number").values_list("starts_on", "ends_on"))


def test_a_contract_has_its_years_and_the_published_terms(world: World) -> None:
    contract = make(world)
    assert spans(contract) == [(D(2026 + n, 9, 15), D(2027 + n, 9, 15)) for n in range(3)]
    terms = contract.terms.get()
    assert (terms.threshold_num, terms.threshold_den, terms.credit_rate_num, terms.credit_rate_den) == (
        90,
        100,
        25,
        100,
    )
    assert (terms.counted_unplanned, terms.counted_preventive, terms.counted_planned) == (
        "always",
        "evidenced",
        "never",
    )
    assert (terms.root_event_window_s, terms.relapse_window_minutes, terms.late_report_window_days) == (60, 30, 30)
    assert (terms.dispute_window_days, terms.unit, terms.unaccounted) == (30, "root_event_workload", "not_resolved")
    assert (terms.open_incident_cutoff, terms.empty_year, terms.partial_year) == ("not_resolved", "met", "own_verdict")
    assert (terms.credit_base, terms.credit_expiry, terms.rounding) == ("next_order", "contract_end", "half_even")
    assert terms.exclusions == ["user_error", "unsupported_workload", "agent_disabled", "site_outage"]
    first = contract.years.get(number=1)
    assert first.starts_at == datetime.datetime(2026, 9, 14, 22, tzinfo=datetime.UTC)
    assert (first.guaranteed_from, first.guaranteed_until) == (first.starts_at, first.ends_at)
    assert not year_is_partial(year=first, contract=contract, terms=terms)
    assert AuditEntry.objects.filter(action="contract.created", subject_id=str(contract.pk)).exists()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"currency": "EURO"}, "bad_currency"),
        ({"time_zone": "Mars/Olympus"}, "bad_time_zone"),
        ({"ends_on": D(2026, 9, 15)}, "bad_period"),
        ({"guarantee_from": D(2026, 9, 14)}, "outside_contract"),
        ({"guarantee_from": D(2029, 9, 15)}, "outside_contract"),
        ({"starts_on": D(2025, 9, 1), "guarantee_from": D(2026, 8, 2)}, "not_offered_yet"),
        ({"number": "ACME-1"}, "number_taken"),
    ],
)
def test_it_refuses_contracts_that_cannot_be(world: World, changes: dict[str, Any], code: str) -> None:
    before = Contract.objects.count()
    with pytest.raises(DomainError) as refused:
        make(world, **changes)
    assert refused.value.code == code
    assert Contract.objects.count() == before


def test_the_database_refuses_a_guarantee_before_it_was_offered(world: World) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Contract.objects.filter(pk=world.contract.pk).update(starts_on=D(2026, 1, 1), guarantee_from=D(2026, 8, 2))


def test_the_guarantee_can_be_added_to_a_contract_in_force(world: World) -> None:
    contract = make(world, starts_on=D(2025, 3, 1), ends_on=D(2028, 3, 1), guarantee_from=None)
    assert set(contract.years.values_list("guaranteed_from", flat=True)) == {None}
    services.guarantee_add(contract=contract, guarantee_from=D(2026, 12, 1), actor=world.account_manager)
    contract.refresh_from_db()
    first, second, third = contract.years.order_by("number")
    assert first.guaranteed_from is None
    assert year_terms(year=first) is None
    assert second.guaranteed_from == datetime.datetime(2026, 11, 30, 23, tzinfo=datetime.UTC)
    assert second.guaranteed_until == second.ends_at
    assert third.guaranteed_from == third.starts_at
    terms = year_terms(year=second)
    assert [year_is_partial(year=y, contract=contract, terms=terms) for y in (second, third)] == [True, False]
    with pytest.raises(DomainError, match="already"):
        services.guarantee_add(contract=contract, guarantee_from=D(2027, 1, 1), actor=world.account_manager)


def test_the_guarantee_cannot_begin_in_a_year_that_has_ended(world: World) -> None:
    contract = make(world, starts_on=D(2025, 9, 1), ends_on=D(2028, 9, 1), guarantee_from=None)
    contract.years.filter(number=1).update(state="closed", closed_at=NOW)
    with pytest.raises(DomainError) as refused:
        services.guarantee_add(contract=contract, guarantee_from=D(2026, 8, 3), actor=None)
    assert refused.value.code == "year_ended"
    services.guarantee_add(contract=contract, guarantee_from=D(2026, 9, 1), actor=None)


def test_another_cap_cannot_reach_an_order_that_is_recorded(world: World) -> None:
    contract = make(world)
    order(world, contract=contract, ordered_on=D(2027, 5, 1))
    with pytest.raises(DomainError) as refused:
        services.terms_create_version(contract=contract, effective_on=D(2027, 5, 1), actor=None, credit_cap_den=2)
    assert (refused.value.code, contract.terms.count()) == ("order_recorded", 1)
    services.terms_create_version(contract=contract, effective_on=D(2027, 5, 1), actor=None, threshold_num=95)
    services.terms_create_version(contract=contract, effective_on=D(2027, 5, 2), actor=None, credit_cap_den=2)


def test_a_customer_and_its_contract_are_made_together_or_not_at_all(world: World) -> None:
    fields = {"name": "Cluster", "currency": "EUR", "time_zone": "UTC", "starts_on": D(2027, 1, 1)}
    made = services.customer_contract_create(
        customer="Acme", number="C-9", ends_on=D(2028, 1, 1), actor=world.account_manager, **fields
    )
    assert (made.organisation.name, made.organisation.slug) == ("Acme", "acme-2")  # another customer of that name
    before = Organisation.objects.count()
    for customer, ends_on in (("Late", D(2026, 1, 1)), (" ", D(2028, 1, 1))):
        with pytest.raises(DomainError):
            services.customer_contract_create(
                customer=customer, number="C-10", ends_on=ends_on, actor=world.account_manager, **fields
            )
    assert Organisation.objects.count() == before


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("feb_28", [D(2028, 2, 29), D(2029, 2, 28), D(2030, 2, 28), D(2031, 2, 28), D(2032, 2, 29), D(2033, 2, 28)]),
        ("mar_1", [D(2028, 2, 29), D(2029, 3, 1), D(2030, 3, 1), D(2031, 3, 1), D(2032, 2, 29), D(2033, 3, 1)]),
    ],
)
def test_a_contract_from_29_february_has_its_anniversary_as_the_terms_say(
    world: World, rule: str, expected: list[D]
) -> None:
    contract = make(
        world,
        starts_on=D(2028, 2, 29),
        ends_on=expected[-1],
        guarantee_from=D(2028, 2, 29),
        terms={"leap_day_anniversary": rule},
    )
    assert spans(contract) == list(itertools.pairwise(expected))
    last = contract.years.order_by("-number")[0]
    assert not year_is_partial(year=last, contract=contract, terms=year_terms(year=last))


def test_another_rule_for_leap_days_moves_only_years_to_come(world: World) -> None:
    contract = make(world, starts_on=D(2024, 2, 29), ends_on=D(2028, 2, 29), guarantee_from=D(2026, 9, 1))
    assert spans(contract)[:3] == [
        (D(2024, 2, 29), D(2025, 2, 28)),
        (D(2025, 2, 28), D(2026, 2, 28)),
        (D(2026, 2, 28), D(2027, 2, 28)),
    ]
    services.terms_create_version(
        contract=contract, effective_on=D(2027, 2, 28), actor=None, leap_day_anniversary="mar_1"
    )
    # The year from 28 February 2027 is the first under the new rule; no year before it moves, and none gapes.
    assert spans(contract)[2:] == [(D(2026, 2, 28), D(2027, 2, 28)), (D(2027, 2, 28), D(2028, 2, 29))]


def test_anniversaries_of_ordinary_days_ignore_the_leap_day_rule() -> None:
    assert anniversary(D(2027, 3, 1), 1, "feb_28") == anniversary(D(2027, 3, 1), 1, "mar_1") == D(2028, 3, 1)
    assert year_spans(D(2027, 1, 1), D(2027, 1, 1), "feb_28") == []


@pytest.mark.parametrize(
    ("zone", "starts_on", "begins"),
    [
        # At midnight the clocks went forward: the day begins an hour later, at the first instant that exists.
        ("America/Santiago", D(2027, 9, 5), datetime.datetime(2027, 9, 5, 4, tzinfo=datetime.UTC)),
        ("Africa/Cairo", D(2027, 4, 30), datetime.datetime(2027, 4, 29, 22, tzinfo=datetime.UTC)),
        ("Pacific/Kiritimati", D(2027, 1, 1), datetime.datetime(2026, 12, 31, 10, tzinfo=datetime.UTC)),
    ],
)
def test_years_begin_at_the_first_instant_of_their_day(
    world: World, zone: str, starts_on: D, begins: datetime.datetime
) -> None:
    ends_on = starts_on.replace(year=starts_on.year + 2)
    contract = make(world, time_zone=zone, starts_on=starts_on, ends_on=ends_on, guarantee_from=starts_on)
    first, second = contract.years.order_by("number")
    assert first.starts_at == begins
    assert first.ends_at == second.starts_at


def test_a_contract_that_ends_before_the_anniversary_has_a_partial_year(world: World) -> None:
    contract = make(world, ends_on=D(2028, 1, 1))
    assert spans(contract) == [(D(2026, 9, 15), D(2027, 9, 15)), (D(2027, 9, 15), D(2028, 1, 1))]
    flags = [year_is_partial(year=y, contract=contract, terms=year_terms(year=y)) for y in contract.years.all()]
    assert flags == [False, True]


def test_a_contract_can_end_early_and_its_running_year_with_it(world: World) -> None:
    contract = make(world)
    services.contract_end_early(contract=contract, ends_on=D(2027, 1, 31), actor=None, reason="Insolvency.")
    (year,) = contract.years.all()
    assert (year.ends_on, year.guaranteed_until) == (D(2027, 1, 31), year.ends_at)
    contract.refresh_from_db()
    assert year_is_partial(year=year, contract=contract, terms=year_terms(year=year))
    with pytest.raises(DomainError):
        services.contract_end_early(contract=contract, ends_on=D(2026, 1, 1), actor=None, reason="Past.")
    with pytest.raises(DomainError):
        services.contract_end_early(contract=contract, ends_on=D(2028, 1, 1), actor=None, reason="Later.")


def test_a_contract_that_ends_early_keeps_no_year_beyond_its_end(world: World) -> None:
    """On the first day of its second year only that day can still be the last."""
    contract = make(world)
    with time_machine.travel(datetime.datetime(2027, 9, 15, 8, tzinfo=datetime.UTC)):
        with pytest.raises(DomainError) as refused:
            services.contract_end_early(contract=contract, ends_on=D(2027, 9, 15), actor=None, reason="Today.")
        assert refused.value.code == "bad_end"
        services.contract_end_early(contract=contract, ends_on=D(2027, 9, 16), actor=None, reason="Tonight.")
    assert spans(contract) == [(D(2026, 9, 15), D(2027, 9, 15)), (D(2027, 9, 15), D(2027, 9, 16))]


def test_years_are_made_once(world: World) -> None:
    contract = make(world)
    before = list(contract.years.order_by("number").values())
    services.contract_years_ensure(contract=contract)
    assert list(contract.years.order_by("number").values()) == before


def test_a_year_is_judged_under_the_version_in_force_on_its_first_guaranteed_day(world: World) -> None:
    contract = make(world)
    services.terms_create_version(contract=contract, effective_on=D(2027, 3, 1), actor=None, threshold_num=95)
    services.terms_create_version(contract=contract, effective_on=D(2028, 9, 15), actor=None, unit="incident")
    versions = [year_terms(year=year) for year in contract.years.order_by("number")]
    assert [(t.version, t.threshold_num, t.unit) for t in versions if t] == [
        (1, 90, "root_event_workload"),
        (2, 95, "root_event_workload"),
        (3, 95, "incident"),
    ]


def test_a_version_cannot_reach_back_into_a_year_that_has_begun(world: World) -> None:
    contract = make(world)
    with pytest.raises(DomainError) as refused:
        services.terms_create_version(contract=contract, effective_on=D(2026, 9, 15), actor=None, threshold_num=80)
    assert refused.value.code == "not_later"
    late = make(world, number="C-2", starts_on=D(2025, 9, 15), ends_on=D(2028, 9, 15), guarantee_from=D(2026, 9, 20))
    with pytest.raises(DomainError) as refused:
        services.terms_create_version(contract=late, effective_on=D(2026, 9, 16), actor=None, threshold_num=80)
    assert refused.value.code == "year_begun"
    assert late.terms.count() == 1
    services.terms_create_version(contract=late, effective_on=D(2026, 9, 21), actor=None, threshold_num=80)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"colour": "red"}, "unknown_terms"),
        ({"version": 9}, "unknown_terms"),
        ({"unit": "gpu"}, "bad_terms"),
        ({"exclusions": ["bad_luck"]}, "bad_terms"),
        ({"exclusions": "user_error"}, "bad_terms"),
        ({"threshold_num": 101}, "bad_terms"),
        ({"threshold_num": 0}, "bad_terms"),
        ({"credit_cap_num": 0}, "bad_terms"),
        ({"credit_rate_den": 0}, "bad_terms"),
        ({"credit_expiry": "date"}, "bad_terms"),
        ({"credit_expiry": "months"}, "bad_terms"),
        ({"credit_expiry_months": 12}, "bad_terms"),
        ({"credit_expiry": "months", "credit_expiry_months": 96_000}, "bad_terms"),  # later than any date
    ],
)
def test_terms_have_only_the_values_that_they_list(world: World, fields: dict[str, Any], code: str) -> None:
    contract = make(world)
    with pytest.raises(DomainError) as refused:
        services.terms_create_version(contract=contract, effective_on=D(2027, 9, 1), actor=None, **fields)
    assert refused.value.code == code
    assert contract.terms.count() == 1


@pytest.mark.parametrize(
    "statement", ["UPDATE contracts_guaranteeterms SET threshold_num = 1", "DELETE FROM contracts_guaranteeterms"]
)
def test_a_version_is_never_changed(world: World, statement: str) -> None:
    from django.db import connection

    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)
    assert GuaranteeTerms.objects.filter(threshold_num=90).exists()


@pytest.mark.parametrize("days", [0, 30, 90])
def test_a_year_closes_at_local_midnight_after_its_window(world: World, days: int) -> None:
    contract = make(world, terms={"late_report_window_days": days})
    year = contract.years.get(number=1)
    closes = year_closes_at(year=year, contract=contract, terms=year_terms(year=year))
    local = closes.astimezone(datetime.timezone(datetime.timedelta(hours=2 if days < 40 else 1)))
    assert (local.date(), local.time()) == (D(2027, 9, 15) + datetime.timedelta(days=days), datetime.time())


def order(world: World, **changes: Any) -> Order:
    fields: dict[str, Any] = {
        "contract": world.contract,
        "number": "R-1",
        "kind": "renewal",
        "amount": Money(100_00, "EUR"),
        "ordered_on": D(2026, 11, 30),
        "actor": world.account_manager,
    }
    return services.order_record(**{**fields, **changes})


def test_orders_are_recorded_and_cancelled_once(world: World) -> None:
    row = order(world)
    assert (row.state, row.amount_minor, row.currency) == ("recorded", 100_00, "EUR")
    cancelled = services.order_cancel(order=row, actor=world.account_manager, reason="Withdrawn.")
    assert (cancelled.state, cancelled.cancelled_at) == ("cancelled", NOW)
    with pytest.raises(DomainError, match="already"):
        services.order_cancel(order=row, actor=world.account_manager, reason="Again.")
    actions = AuditEntry.objects.filter(subject_id=str(row.pk)).order_by("at", "id").values_list("action", flat=True)
    assert list(actions) == ["order.recorded", "order.cancelled"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"kind": "gift"}, "bad_kind"),
        ({"amount": Money(1, "USD")}, "wrong_currency"),
        ({"amount": Money(0, "EUR")}, "bad_amount"),
        ({"amount": Money(-5, "EUR")}, "bad_amount"),
    ],
)
def test_it_refuses_orders_that_cannot_be(world: World, changes: dict[str, Any], code: str) -> None:
    with pytest.raises(DomainError) as refused:
        order(world, **changes)
    assert refused.value.code == code


def test_an_order_number_is_taken_once(world: World) -> None:
    order(world)
    with pytest.raises(DomainError, match="already an order"):
        order(world)
