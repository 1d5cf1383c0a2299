"""The pure rules: rounding, caps, months, and who pays first."""

import datetime
import uuid
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from yoco.credits.amounts import Payer, credit_minor, last_usable_day, months_later, order_cap_minor, plan_application

MINOR = st.integers(0, 10**15)
SHARE = st.integers(1, 10_000).flatmap(lambda den: st.tuples(st.integers(1, den), st.just(den)))
AT = st.integers(1_800_000_000, 1_860_000_000).map(lambda s: datetime.datetime.fromtimestamp(s, datetime.UTC))
PAYERS = st.lists(
    st.builds(Payer, st.uuids(), st.integers(0, 2), st.one_of(st.none(), AT), AT, st.integers(0, 10**6)),
    unique_by=lambda p: p.credit_id,
    max_size=8,
)


@given(MINOR, SHARE)
def test_a_credit_is_within_half_a_minor_unit_of_the_exact_share(base: int, share: tuple[int, int]) -> None:
    exact = Fraction(base * share[0], share[1])
    for rounding in ("half_even", "half_up"):
        assert abs(credit_minor(base, *share, rounding) - exact) <= Fraction(1, 2)


def test_ties_are_a_term() -> None:
    assert [credit_minor(n, 1, 4, "half_even") for n in (2, 6, 10)] == [0, 2, 2]
    assert [credit_minor(n, 1, 4, "half_up") for n in (2, 6, 10)] == [1, 2, 3]


@given(MINOR, SHARE)
def test_a_cap_never_exceeds_its_share(amount: int, share: tuple[int, int]) -> None:
    cap = order_cap_minor(amount, *share)
    assert 0 <= cap * share[1] <= amount * share[0] < (cap + 1) * share[1]


@given(PAYERS, st.integers(0, 10**6))
def test_a_plan_pays_all_it_can_and_no_credit_overtakes_another(payers: list[Payer], room: int) -> None:
    plan = dict(plan_application(payers, room))
    assert sum(plan.values()) == min(room, sum(p.available for p in payers))
    assert all(0 < minor <= next(p.available for p in payers if p.credit_id == pk) for pk, minor in plan.items())
    ranked = sorted(payers, key=lambda p: p.rank)
    left_over = False
    for payer in ranked:
        assert not (left_over and payer.credit_id in plan)
        left_over = left_over or plan.get(payer.credit_id, 0) < payer.available


@given(PAYERS)
def test_the_order_of_the_list_does_not_matter(payers: list[Payer]) -> None:
    assert plan_application(payers, 10**5) == plan_application(list(reversed(payers)), 10**5)


def test_rank_is_priority_then_expiry_then_effective_then_id() -> None:
    early, late = (datetime.datetime(2027, month, 1, tzinfo=datetime.UTC) for month in (1, 2))
    ids = [uuid.UUID(int=n) for n in range(6)]
    ranked = [
        Payer(ids[5], 0, None, late, 1),
        Payer(ids[4], 1, early, late, 1),
        Payer(ids[3], 1, late, early, 1),
        Payer(ids[1], 1, None, early, 1),
        Payer(ids[2], 1, None, early, 1),
        Payer(ids[0], 1, None, late, 1),
    ]
    assert [pk for pk, _ in plan_application(reversed(ranked), 10)] == [p.credit_id for p in ranked]


@given(st.dates(datetime.date(2027, 1, 1), datetime.date(2035, 12, 31)), st.integers(0, 120))
def test_months_later_keeps_the_day_or_takes_the_months_last(day: datetime.date, months: int) -> None:
    later = months_later(day, months)
    assert (later.year * 12 + later.month) - (day.year * 12 + day.month) == months
    assert later.day == day.day or (later.day < day.day and (later + datetime.timedelta(days=1)).day == 1)


def test_the_last_usable_day_of_each_kind_of_expiry() -> None:
    day = datetime.date
    common = {"issued_on": day(2027, 11, 30), "contract_ends_on": day(2028, 9, 1), "usable_until": day(2027, 12, 30)}
    assert last_usable_day(expiry="date", expires_on=day(2028, 1, 1), months=None, renewed=False, **common) == day(
        2028, 1, 1
    )
    assert last_usable_day(expiry="months", expires_on=None, months=3, renewed=False, **common) == day(2028, 2, 29)
    assert last_usable_day(expiry="contract_end", expires_on=None, months=None, renewed=False, **common) == day(
        2028, 8, 31
    )
    assert last_usable_day(expiry="contract_end", expires_on=None, months=None, renewed=True, **common) is None
    common["usable_until"] = day(2028, 10, 31)
    assert last_usable_day(expiry="contract_end", expires_on=None, months=None, renewed=False, **common) == day(
        2028, 10, 31
    )
