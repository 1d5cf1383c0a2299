"""The analytics of a year against figures worked out by hand, on both databases."""

import datetime
import io

import pytest
from django.core.management import call_command

from tests.analytics.fleet import (
    GPUS,
    MIGRATED_MS,
    NOW,
    RESTARTED_MS,
    WATCHED_HOURS,
    WITHOUT_MS,
    build,
    restarted,
    watch,
)
from tests.guarantee.facts import at, incident
from tests.people import World
from yoco.contracts.models import ContractYear
from yoco.core.money import Money
from yoco.guarantee.analytics.percentiles import spread_of
from yoco.guarantee.analytics.selectors import Analytics, Given, year_analytics
from yoco.guarantee.analytics.waste import priced
from yoco.guarantee.models import Placement
from yoco.guarantee.placements import placements_refresh
from yoco.incidents.models import Run
from yoco.waste.rates import mttf_interval

pytestmark = pytest.mark.django_db
HOUR_MS = 3_600_000


@pytest.fixture
def year(world: World) -> ContractYear:
    build(world.contract)
    return ContractYear.objects.select_related("contract").get(pk=world.year.pk)


def analytics(year: ContractYear, **more: object) -> Analytics:
    return year_analytics(year=year, now=NOW, **more)  # type: ignore[arg-type]


def test_rates_rest_on_the_merged_time_of_watching(year: ContractYear) -> None:
    rates = analytics(year).rates
    assert rates is not None
    assert rates.counts == [5 - 1, 1]  # the fifth failure falls in the second week
    assert sum(rates.exposures_ms) == 256 * WATCHED_HOURS * HOUR_MS
    assert rates.rate.per_thousand_node_days == pytest.approx(5 / 2.56)
    (size,) = rates.sizes
    assert (size.gpus, size.nodes, size.failures, size.mttf) == (GPUS, 256, 5, 48.0)
    assert size.interval == pytest.approx(mttf_interval(5, WATCHED_HOURS))
    (life,) = rates.lives
    assert (life.failures, life.until_first_ms) == (5, 10 * HOUR_MS)


def test_terms_add_up_to_the_total_to_the_millisecond(year: ContractYear) -> None:
    waste = analytics(year).waste
    assert waste is not None
    assert (waste.measured.incidents, waste.estimated.incidents) == (1, 4)
    assert waste.measured.actual == waste.measured.counterfactual == RESTARTED_MS
    assert waste.estimated.actual == 4 * MIGRATED_MS
    assert waste.total.saved == 4 * (WITHOUT_MS - MIGRATED_MS)
    for side in ("actual", "counterfactual"):
        assert sum(waste.total.terms[side].values()) == getattr(waste.total, side)
        assert waste.total.unsplit(side) == 0
    assert waste.total.terms["actual"]["restart"] == GPUS * 15 * 60_000
    assert waste.total.terms["actual"]["migration"] == 4 * GPUS * 128_000
    assert priced(RESTARTED_MS, year.contract) == Money(426_667, "EUR")  # 1,706.667 GPU-hours at 2.50


def test_waste_placed_before_terms_were_kept_is_shown_apart(year: ContractYear) -> None:
    Placement.objects.filter(waste_estimated=False).update(waste_terms=None)
    found = analytics(year, topics=("waste",))
    assert found.waste is not None
    assert found.waste.total.unsplit("actual") == RESTARTED_MS
    assert found.tables["terms"].rows[-1] == ("unsplit", RESTARTED_MS, 0, RESTARTED_MS, 0)


def test_net_benefit_takes_each_loss_off_once(year: ContractYear) -> None:
    year.fees_minor = 10_000
    benefit = analytics(year, given=Given(spare_nodes=2)).benefit
    assert benefit is not None
    assert benefit.pauses == 4 * GPUS * 128_000
    assert benefit.idle == 2 * 8 * WATCHED_HOURS * HOUR_MS
    assert benefit.net == 4 * (WITHOUT_MS - MIGRATED_MS) - benefit.idle
    money = priced(benefit.net, year.contract)
    assert money is not None
    assert benefit.net_money == money - Money(10_000, "EUR")


def test_incidents_tell_how_many_spares_stood_ready_at_least(world: World) -> None:
    named = [("spare-1", "pool"), ("spare-2", "pool"), ("spare-1", "pool"), ("node-9", "preempted"), ("", "")]
    rows = [
        incident(world.contract, at(10 + 30 * n), spare_node=node, spare_origin=origin)
        for n, (node, origin) in enumerate(named)
    ]
    placements_refresh(incident_ids=[row.pk for row in rows])
    benefit = analytics(world.year, topics=("waste",)).benefit
    assert benefit is not None
    assert benefit.spares_told == 2


def test_the_loss_of_preempted_jobs_is_taken_off(world: World) -> None:
    row = incident(world.contract, at(10), preempted_gpus=8, preempted_ms=HOUR_MS)
    placements_refresh(incident_ids=[row.pk])
    year = ContractYear.objects.select_related("contract").get(pk=world.year.pk)
    benefit = analytics(year).benefit
    assert benefit is not None
    assert benefit.preempted == 8 * HOUR_MS
    assert benefit.net == WITHOUT_MS - MIGRATED_MS - 8 * HOUR_MS


def test_goodput_and_badput_add_up_to_the_watched_time(year: ContractYear) -> None:
    goodput = analytics(year).goodput
    assert goodput is not None
    fleet = goodput.fleet
    assert fleet.total == GPUS * WATCHED_HOURS * HOUR_MS
    assert fleet.total == fleet.productive + sum(fleet.badput.values())
    assert sum(fleet.badput.values()) == 4 * MIGRATED_MS + RESTARTED_MS
    assert fleet.badput["wasted_progress"] == GPUS * 20 * 60_000
    given = goodput.assumptions
    # One checkpoint is known, 20 minutes old at its failure; one restart is measured.
    assert [(row.value_ms, row.incidents) for row in given.rows] == [
        (40 * 60_000, 1),
        (15 * 60_000, 1),
        (5 * 60_000, 1),
        (60_000, 0),
    ]
    (run,) = goodput.runs
    # λ = 5/240 h, Δ = 2/3 h, u = 1/4 h, q = 1/12 h, w = 1/60 h.
    assert run.renewal == pytest.approx(0.666667 / (48.333333 * 0.0143379), rel=1e-5)
    assert run.linear == pytest.approx((1 - 5 / 240 * (1 / 4 + 1 / 3)) / 1.025)
    assert run.best_interval_hours == pytest.approx((2 / 60 / (5 / 240)) ** 0.5)
    standing = 4 * GPUS * 130_000 + GPUS * 30 * 60_000
    assert run.available == pytest.approx(1 - standing / fleet.total)


def test_the_fleet_is_weighted_by_watched_gpu_time(year: ContractYear) -> None:
    Run.objects.create(contract=year.contract, run_id="calm", gpus=GPUS, gpus_per_node=8)
    watch(year.contract, "calm", 0, 3 * WATCHED_HOURS)  # only ten days have passed
    goodput = analytics(year).goodput
    assert goodput is not None
    busy, calm = sorted(goodput.runs, key=lambda run: run.name == "calm")
    assert calm.breakdown.goodput == calm.available == 1
    assert calm.breakdown.total == busy.breakdown.total
    assert busy.available is not None
    assert goodput.fleet_share("available") == pytest.approx((1 + busy.available) / 2)
    assert calm.linear == pytest.approx(1 / 1.025)
    assert calm.best_interval_hours is None


def test_where_it_hurts(year: ContractYear) -> None:
    found = analytics(year)
    hurts = found.hurts
    assert hurts is not None
    assert [(one.key, one.failures, one.cumulated) for one in hurts.causes] == [("xid", 4, 0.8), ("hang", 1, 1.0)]
    assert [(one.key, one.failures) for one in hurts.xids] == [("79", 4)]
    (kind,) = hurts.recovery["kind"]
    # 130 s four times and 1,800 s once: the 95th percentile lies four fifths of the way between the last two.
    assert (kind.key, kind.n, kind.p50, kind.p95, kind.longest) == ("unplanned", 5, 130_000, 1_466_000, 1_800_000)
    assert [(one.key, one.n) for one in hurts.recovery["resolution"]] == [
        ("live_migration", 4),
        ("checkpoint_restart", 1),
    ]
    phases = {one.key: one for one in hurts.phases}
    assert (phases["state_moved_at"].n, phases["state_moved_at"].p50) == (4, 90_000)
    assert (phases["resumed_at"].n, phases["resumed_at"].longest) == (5, 900_000)
    assert hurts.skewed == 0
    assert hurts.nodes == []
    calendar = dict(found.tables["calendar"].rows)
    assert calendar[datetime.date(2026, 9, 1)] == 1
    assert calendar[datetime.date(2026, 9, 2)] == 0
    assert len(calendar) == 10
    assert sum(calendar.values()) == 5


def test_a_node_that_fails_again_and_again_is_named(world: World) -> None:
    rows = [incident(world.contract, at(10 + 24 * n), node="node-7", gpu_uuid="GPU-7") for n in range(5)]
    placements_refresh(incident_ids=[row.pk for row in rows])
    Run.objects.update(gpus=GPUS, gpus_per_node=8)
    watch(world.contract, "run-1", 0, WATCHED_HOURS)
    hurts = analytics(world.year).hurts
    assert hurts is not None
    assert [(one.node, one.failures) for one in hurts.nodes] == [("node-7", 5)]
    assert [one.node for one in hurts.gpus] == ["GPU-7"]


def test_the_forecast_rests_on_node_hours(year: ContractYear) -> None:
    forecast = analytics(year).forecast
    assert forecast is not None
    assert (forecast.counted, forecast.resolved, forecast.basis) == (5, 4, "exposure")
    assert forecast.node_hours == 256 * WATCHED_HOURS
    assert forecast.to_come == round(5 * (8760 - 240) / 240)
    assert forecast.allowed == (5 + forecast.to_come) // 10 - 1
    assert forecast.chance_short is not None
    assert 0.3 < forecast.chance_short < 1


def test_a_late_report_is_in_the_figures_at_once(year: ContractYear) -> None:
    late = restarted(year.contract, 100.0)
    placements_refresh(incident_ids=[late.pk])
    found = analytics(year)
    assert found.waste is not None
    assert found.rates is not None
    assert found.waste.measured.actual == 2 * RESTARTED_MS
    assert found.rates.rate.failures == 6


def test_instants_that_ran_backwards_end_no_phase(world: World) -> None:
    row = incident(world.contract, at(10), spare_ready_at=at(9))
    placements_refresh(incident_ids=[row.pk])
    hurts = analytics(world.year).hurts
    assert hurts is not None
    assert hurts.skewed == 1
    assert "spare_ready_at" not in {phase.key for phase in hurts.phases}
    assert all(phase.p50 >= 0 for phase in hurts.phases)


def test_percentiles_interpolate_as_postgresql_does() -> None:
    assert spread_of("x", []) is None
    one = spread_of("x", [7])
    assert one is not None
    assert (one.p50, one.p95, one.longest) == (7, 7, 7)
    two = spread_of("x", [100, 0])
    assert two is not None
    assert (two.p50, two.p95) == (50, 95)


def test_no_value_is_nan_or_infinite_whatever_lacks(world: World) -> None:
    """Nothing, then runs without GPUs, runs that never ended and clocks that ran backwards."""
    empty = analytics(world.year)
    assert empty.rates is not None
    assert empty.rates.rate.per_thousand_node_days is None
    Run.objects.create(contract=world.contract, run_id="none", gpus=0)
    Run.objects.create(contract=world.contract, run_id="unknown")
    Run.objects.create(contract=world.contract, run_id="calm", gpus=8)
    for name in ("none", "unknown", "calm"):
        watch(world.contract, name, 1, 2)
        watch(world.contract, name, 5, 4)  # a clock that ran backwards
        watch(world.contract, name, 6, 6, run_ended_at=at(5))
    row = incident(world.contract, at(1.5), run="none", gpus=0)
    placements_refresh(incident_ids=[row.pk])
    found = analytics(world.year)
    assert found.rates is not None
    assert sorted(found.rates.without_gpus) == ["none", "unknown"]
    assert found.rates.unwatched == 1
    assert sum(found.rates.exposures_ms) == HOUR_MS
    for table in found.tables.values():
        for record in table.records():
            for name, value in record.items():
                if isinstance(value, float):
                    assert value == value and abs(value) != float("inf"), (table.code, name)  # noqa: PT018
                if isinstance(value, int) and table.code not in ("forecast", "benefit"):
                    assert value >= 0, (table.code, name)


def test_old_incidents_are_split_by_term_once(year: ContractYear) -> None:
    Placement.objects.update(waste_terms=None)
    out = io.StringIO()
    call_command("waste_terms_fill", stdout=out)
    call_command("waste_terms_fill", stdout=out)
    assert out.getvalue().splitlines() == ["5 incidents were split by term.", "0 incidents were split by term."]
    waste = analytics(year, topics=("waste",)).waste
    assert waste is not None
    assert waste.total.unsplit("actual") == waste.total.unsplit("counterfactual") == 0
    assert waste.total.actual == 4 * MIGRATED_MS + RESTARTED_MS
