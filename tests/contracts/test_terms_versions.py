"""Versions of the terms, by properties: which one is in force, which one a year keeps, and what a diff shows."""

import contextlib
import datetime
import itertools
from typing import Any

import pytest
import time_machine
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.people import World
from yoco.contracts.calendar import year_spans
from yoco.contracts.models import Contract, ContractYear, ExclusionReason, GuaranteeTerms
from yoco.contracts.selectors import terms_in_force, year_terms, year_terms_of
from yoco.contracts.services import TERMS_CHOICES, TERMS_FIELDS, contract_create, terms_create_version
from yoco.contracts.words import SHARES, TERMS_LABELS, terms_changes, terms_rows, terms_versions
from yoco.core.problem import DomainError

D = datetime.date
FIRST, LAST = D(2026, 8, 3), D(2036, 12, 31)
days = st.dates(FIRST, LAST)


@st.composite
def histories(draw: st.DrawFn) -> list[GuaranteeTerms]:
    """A contract's versions, each effective after the one before it, in any order."""
    effective = sorted(draw(st.sets(days, min_size=1, max_size=8)))
    versions = [GuaranteeTerms(version=n, effective_on=day) for n, day in enumerate(effective, start=1)]
    return draw(st.permutations(versions))


@settings(deadline=None)
@given(histories(), days)
def test_in_force_is_the_latest_version_that_has_taken_effect(versions: list[GuaranteeTerms], day: D) -> None:
    found = terms_in_force(versions, day)
    begun = [terms.version for terms in versions if terms.effective_on <= day]
    assert (found.version if found else None) == max(begun, default=None)
    assert found is None or terms_in_force(versions, found.effective_on) is found  # from its first day on
    before = terms_in_force(versions, found.effective_on - datetime.timedelta(days=1)) if found else None
    assert before is None or found is None or before.version == found.version - 1


@settings(deadline=None)
@given(histories(), days, st.integers(1, 3000), days)
def test_each_guaranteed_year_has_one_version_and_later_years_never_an_earlier_one(
    versions: list[GuaranteeTerms], starts_on: D, length: int, guarantee_from: D
) -> None:
    ends_on = starts_on + datetime.timedelta(days=length)
    contract = Contract(starts_on=starts_on, ends_on=ends_on, guarantee_from=guarantee_from)
    years = [
        ContractYear(number=span.number, starts_on=span.starts_on, ends_on=span.ends_on)
        for span in year_spans(starts_on, ends_on, "feb_28")
    ]
    found = [year_terms_of(versions, year=year, contract=contract) for year in years]
    for year, terms in zip(years, found, strict=True):
        if guarantee_from >= year.ends_on:
            assert terms is None
            continue
        first = max(year.starts_on, guarantee_from)
        assert terms is terms_in_force(versions, first)
        # A version that takes effect later in the year, or after it, does not touch the year.
        kept = [each for each in versions if each.effective_on <= first]
        assert year_terms_of(kept, year=year, contract=contract) is terms
    numbers = [terms.version for terms in found if terms is not None]
    assert numbers == sorted(numbers)


@st.composite
def some_terms(draw: st.DrawFn) -> GuaranteeTerms:
    """Any values that a version may have."""
    values: dict[str, Any] = {name: draw(st.sampled_from(sorted(TERMS_CHOICES[name]))) for name in TERMS_CHOICES}
    for name in SHARES:
        den = draw(st.integers(1, 1000))
        values |= {f"{name}_num": draw(st.integers(1, den)), f"{name}_den": den}
    for name in TERMS_FIELDS:
        if name.endswith(("_s", "_minutes", "_days")):
            values[name] = draw(st.integers(0, 400))
    values["path_failover_counted"] = draw(st.booleans())
    values["exclusions"] = draw(st.lists(st.sampled_from(ExclusionReason.values), unique=True))
    values["credit_expires_on"] = draw(days) if values["credit_expiry"] == "date" else None
    values["credit_expiry_months"] = draw(st.integers(1, 60)) if values["credit_expiry"] == "months" else None
    return GuaranteeTerms(version=1, effective_on=FIRST, **values)


@settings(deadline=None)
@given(some_terms(), some_terms())
def test_a_diff_shows_exactly_the_fields_that_differ(before: GuaranteeTerms, after: GuaranteeTerms) -> None:
    differing = {
        name.removesuffix("_num").removesuffix("_den")
        for name in TERMS_FIELDS
        if getattr(before, name) != getattr(after, name)
    }
    shown = terms_changes(before, after)
    assert [change.label for change in shown] == [label for name, label in TERMS_LABELS.items() if name in differing]
    assert all(change.before != change.after for change in shown)
    assert terms_changes(before, before) == []
    assert terms_changes(after, before) == [type(c)(c.label, c.after, c.before) for c in shown]


@settings(deadline=None)
@given(some_terms())
def test_every_field_of_the_terms_is_shown(terms: GuaranteeTerms) -> None:
    fields = {name.removesuffix("_num").removesuffix("_den") for name in TERMS_FIELDS}
    assert set(TERMS_LABELS) == fields
    hidden = {"credit_expires_on", "credit_expiry_months"} - {
        {"date": "credit_expires_on", "months": "credit_expiry_months"}.get(terms.credit_expiry)
    }
    assert {row.name for row in terms_rows(terms)} == fields - hidden


@settings(deadline=None)
@given(histories(), days)
def test_at_most_one_version_is_in_force_and_those_after_it_are_to_come(
    versions: list[GuaranteeTerms], today: D
) -> None:
    shown = terms_versions(versions, today=today)
    assert [version.terms.version for version in shown] == list(range(len(versions), 0, -1))
    assert sum(version.in_force for version in shown) == any(terms.effective_on <= today for terms in versions)
    for version in shown:
        assert version.to_come == (version.terms.effective_on > today)
        assert not (version.to_come and version.in_force)


@pytest.mark.django_db
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    starts_on=st.dates(D(2025, 1, 1), D(2026, 12, 31)),
    guarantee=st.integers(0, 900),
    steps=st.lists(st.tuples(st.integers(0, 250), st.integers(-400, 700), st.integers(50, 99)), max_size=6),
)
def test_no_new_version_ever_changes_a_year_whose_guarantee_has_begun(
    world: World, starts_on: D, guarantee: int, steps: list[tuple[int, int, int]]
) -> None:
    """Time passes, somebody tries to put a version into force on some day, earlier or later; again and again."""
    guarantee_from = max(FIRST, starts_on) + datetime.timedelta(days=guarantee)
    now = datetime.datetime(2026, 8, 3, 12, tzinfo=datetime.UTC)
    with transaction.atomic(), time_machine.travel(now, tick=False) as clock:
        contract = contract_create(
            organisation=world.organisation,
            number="P-1",
            name="Cluster",
            currency="EUR",
            time_zone="Pacific/Auckland",
            starts_on=starts_on,
            ends_on=starts_on + datetime.timedelta(days=4 * 366),
            guarantee_from=guarantee_from,
            actor=None,
        )
        seen: dict[int, int] = {}
        for wait, reach, share in steps:
            now += datetime.timedelta(days=wait)
            clock.move_to(now)
            for year in contract.years.exclude(guaranteed_from=None).filter(guaranteed_from__lte=now):
                terms = year_terms(year=year)
                assert terms is not None
                assert seen.setdefault(year.number, terms.version) == terms.version
            with contextlib.suppress(DomainError):  # not_later, year_begun
                terms_create_version(
                    contract=contract,
                    effective_on=now.date() + datetime.timedelta(days=reach),
                    actor=None,
                    threshold_num=share,
                )
        for number, version in seen.items():
            terms = year_terms(year=contract.years.get(number=number))
            assert terms is not None
            assert terms.version == version
        versions = list(contract.terms.order_by("version"))
        assert all(a.effective_on < b.effective_on for a, b in itertools.pairwise(versions))
        transaction.set_rollback(True)
