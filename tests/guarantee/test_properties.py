"""What holds for every year: order and duplicates play no part, the share moves the right way, verdicts are exact."""

import dataclasses
import datetime
import itertools
import random
from zoneinfo import available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.guarantee import years
from tests.guarantee.facts import END, START, facts, failed, year
from yoco.contracts.calendar import year_spans
from yoco.core.clock import local_midnight
from yoco.guarantee.rules import (
    Placing,
    Review,
    Tally,
    Terms,
    commitment_met,
    place_all,
    share_bounds,
    tally,
    verdict,
)

SEEDS = st.integers(0, 2**32)


def year_of(seed: int) -> tuple[list, list, dict]:
    rng = random.Random(seed)
    both = years.two_years(rng)
    incidents = list({one.id: one for one in years.incidents(rng, rng.randrange(25))}.values())
    return both, incidents, years.reviews(rng, incidents)


def view(placings: list[Placing]) -> set:
    return {(p.incident, p.unit_key, p.lead, p.year, p.kind, p.outcome, p.rule) for p in placings}


@given(SEEDS, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_order_of_arrival_does_not_matter(seed: int, rng: random.Random) -> None:
    both, incidents, reviews = year_of(seed)
    shuffled = list(incidents)
    rng.shuffle(shuffled)
    assert view(place_all(incidents, years=both, reviews=reviews)) == view(
        place_all(shuffled, years=both, reviews=reviews)
    )


@given(SEEDS, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_duplicates_do_not_matter(seed: int, rng: random.Random) -> None:
    both, incidents, reviews = year_of(seed)
    again = incidents + [rng.choice(incidents) for _ in range(5) if incidents]
    assert view(place_all(incidents, years=both, reviews=reviews)) == view(
        place_all(again, years=both, reviews=reviews)
    )


@given(SEEDS)
@settings(deadline=None)
def test_every_incident_is_placed_once_and_every_unit_is_led_once(seed: int) -> None:
    both, incidents, reviews = year_of(seed)
    placings = place_all(incidents, years=both, reviews=reviews)
    assert sorted(p.incident for p in placings) == sorted(one.id for one in incidents)
    leads = [p.unit_key for p in placings if p.lead]
    assert sorted(leads) == sorted({p.unit_key for p in placings})
    for key in set(leads):
        assert len({p.year for p in placings if p.unit_key == key}) == 1


@given(SEEDS, st.integers(0, 364))
@settings(deadline=None)
def test_another_resolved_failure_never_lowers_the_share_and_another_unresolved_one_never_raises_it(
    seed: int, day: int
) -> None:
    _, incidents, _ = year_of(seed)
    at = START + datetime.timedelta(days=day)

    def bounds(*more: object) -> tuple:
        counts = tally(p for p in place_all([*incidents, *more], years=[year()]) if p.year == "year-1")
        return share_bounds(counts, Terms()) or (1, 1)

    before = bounds()
    better = bounds(facts(at, run="another", id="ffffffff-a"))
    worse = bounds(failed(at, run="another", id="ffffffff-b"))
    assert better[0] >= min(before[0], 1)
    assert better[1] >= before[1]
    assert worse[0] <= before[0]
    assert worse[1] <= before[1]


@given(SEEDS, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=400)
def test_excluding_any_incident_never_raises_the_number_resolved(seed: int, rng: random.Random) -> None:
    both, incidents, reviews = year_of(seed)
    before = place_all(incidents, years=both, reviews=reviews)
    resolved = {p.unit_key for p in before if p.lead and p.outcome == "resolved"}
    units: dict[str, list[str]] = {}
    for placing in before:
        units.setdefault(placing.unit_key, []).append(placing.incident)
    shared = [member for members in units.values() if len(members) > 1 for member in members]
    for excluded in rng.sample(shared, min(len(shared), 6)):
        also = {**reviews, excluded: dataclasses.replace(reviews.get(excluded, Review()), excluded_for="user_error")}
        after = place_all(incidents, years=both, reviews=also)
        assert {p.unit_key for p in after if p.lead and p.outcome == "resolved"} <= resolved


@given(
    n=st.integers(1, 10**6),
    num=st.integers(1, 1000),
    den=st.integers(1, 1000),
)
def test_the_verdict_is_exact_at_the_boundary(n: int, num: int, den: int) -> None:
    num, den = min(num, den), max(num, den)
    needed = -(-n * num // den)  # the smallest whole number of resolved failures that is at least the share
    assert commitment_met(needed, n, num, den)
    assert not commitment_met(needed - 1, n, num, den)
    terms = Terms(threshold_num=num, threshold_den=den)
    assert verdict(Tally(resolved=needed, not_resolved=n - needed), terms).name == "met"
    assert verdict(Tally(resolved=needed - 1, not_resolved=n - needed + 1), terms).name == "short"


def test_the_verdict_is_exact_for_every_n_up_to_a_million() -> None:
    """Ninety in a hundred for every n: the needed number grows by one in nine cases of ten, and never early."""
    needed = 0
    for n in range(1, 10**6 + 1):
        if not commitment_met(needed, n, 90, 100):
            needed += 1
        assert commitment_met(needed, n, 90, 100)
        assert needed * 10 - n * 9 < 10
    assert needed == 900_000


@given(SEEDS)
@settings(deadline=None)
def test_pending_failures_are_bounded_by_every_way_they_can_end(seed: int) -> None:
    rng = random.Random(seed)
    counts = Tally(resolved=rng.randrange(50), not_resolved=rng.randrange(9), pending=rng.randrange(1, 5))
    ends = {
        verdict(
            dataclasses.replace(
                counts,
                resolved=counts.resolved + won,
                not_resolved=counts.not_resolved + counts.pending - won,
                pending=0,
            ),
            Terms(),
        ).name
        for won in range(counts.pending + 1)
    }
    now = verdict(counts, Terms()).name
    assert ends == {now} if now != "undecided" else ends == {"met", "short"}


@pytest.mark.parametrize("zone", sorted(available_timezones()))
def test_half_open_years_tile_time_in_every_zone(zone: str) -> None:
    rng = random.Random(zone)
    starts = datetime.date(2026, 8, 3) + datetime.timedelta(days=rng.randrange(1500))
    for start in (starts, datetime.date(2028, 2, 29)):
        ends = start + datetime.timedelta(days=rng.randrange(1, 2500))
        for leap_day in ("feb_28", "mar_1"):
            spans = year_spans(start, ends, leap_day)
            edges = [(local_midnight(s.starts_on, zone), local_midnight(s.ends_on, zone)) for s in spans]
            assert edges[0][0] == local_midnight(start, zone)
            assert edges[-1][1] == local_midnight(ends, zone)
            for (_, end), (begin, _) in itertools.pairwise(edges):
                assert end == begin
            assert all(begin < end for begin, end in edges)
            # Every instant around a boundary lies in exactly one year.
            for begin, _ in edges[1:]:
                for shift in (-1, 0, 1):
                    instant = begin + datetime.timedelta(microseconds=shift)
                    assert sum(a <= instant < b for a, b in edges) == 1


def test_the_generated_years_meet_each_other() -> None:
    """The properties would say little of years whose incidents never share a unit."""
    shared = 0
    for seed in range(100):
        both, incidents, reviews = year_of(seed)
        placings = place_all(incidents, years=both, reviews=reviews)
        shared += len(placings) - len({p.unit_key for p in placings})
    assert shared > 100
    assert END > START
