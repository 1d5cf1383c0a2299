"""The Placement table says what the pure rules say of all incidents together, in whatever steps the facts came."""

import datetime
import random
from dataclasses import fields
from typing import Any

import pytest
from django.db import connection
from django.db.models.signals import post_init
from django.test.utils import CaptureQueriesContext

from tests.guarantee import years
from tests.guarantee.facts import at, incident, restart
from tests.people import World
from yoco.contracts.models import ContractYear, GuaranteeTerms
from yoco.contracts.services import contract_create
from yoco.guarantee import placements
from yoco.guarantee.evidence import IncidentFacts
from yoco.guarantee.facts import SHARED, contract_years, incident_facts
from yoco.guarantee.models import Placement
from yoco.guarantee.neighbourhood import neighbourhood
from yoco.guarantee.rules import place_all
from yoco.guarantee.selectors import year_report
from yoco.guarantee.services import contract_guarantee_add, placements_rebuild, placements_refresh
from yoco.incidents.models import Incident, IncidentState, RootEvent, Run


def stored(world: World, facts: IncidentFacts) -> Incident:
    """A row with these facts; names of runs and root events become rows of their own."""
    run, _ = Run.objects.get_or_create(contract=world.contract, run_id=facts.run)
    event = None
    if facts.root_event:
        event, _ = RootEvent.objects.get_or_create(
            contract=world.contract,
            cause=facts.root_event,
            defaults={"first_at": facts.started_at, "last_at": facts.started_at},
        )
    values = {name: getattr(facts, name) for name in SHARED}
    if values["resumed_at"] and values["resumed_at"] < values["started_at"]:
        values["resumed_at"] = None
    return Incident.objects.create(
        contract=world.contract,
        public_id=facts.id,
        run=run,
        root_event=event,
        gpus=8,
        step_ms=100,
        last_checkpoint_at=facts.started_at - datetime.timedelta(minutes=int(facts.id[-2:], 16)),
        state=IncidentState.OPEN if facts.open else IncidentState.RESOLVED,
        **values,
    )


def second_year(world: World, **terms: object) -> None:
    GuaranteeTerms.objects.create(contract=world.contract, version=2, effective_on=datetime.date(2027, 9, 1), **terms)
    ContractYear.objects.create(
        contract=world.contract,
        number=2,
        starts_on=datetime.date(2027, 9, 1),
        ends_on=datetime.date(2028, 9, 1),
        starts_at=years.END,
        ends_at=years.END + datetime.timedelta(days=366),
        guaranteed_from=years.END,
        guaranteed_until=years.END + datetime.timedelta(days=366),
    )


def view() -> dict[int, tuple]:
    names = [
        "year_id",
        "kind",
        "unit_key",
        "lead",
        "outcome",
        "rule",
        "without_loss",
        "waste_actual_ms",
        "waste_counterfactual_ms",
        "waste_estimated",
    ]
    return {row.pk: tuple(getattr(row, name) for name in names) for row in Placement.objects.all()}


@pytest.mark.parametrize("seed", range(12))
def test_any_steps_lead_to_what_the_rules_say_of_the_whole(world: World, seed: int) -> None:
    rng = random.Random(seed)
    second_year(world, unit=rng.choice(["root_event", "incident", "root_event_workload"]), relapse_window_minutes=240)
    generated = {one.id: one for one in years.incidents(rng, 40)}
    rows = [stored(world, one) for one in generated.values()]
    rng.shuffle(rows)
    while rows:
        size = rng.randrange(1, 9)
        step, rows = rows[:size], rows[size:]
        placements_refresh(incident_ids=[row.pk for row in step])
    incremental = view()

    whole = place_all([incident_facts(row) for row in Incident.objects.all()], years=contract_years(world.contract))
    ids = {str(public): pk for public, pk in Incident.objects.values_list("public_id", "pk")}
    for placing in whole:
        row = Placement.objects.get(pk=ids[placing.incident])
        assert (row.unit_key, row.lead, row.outcome, row.rule) == (
            placing.unit_key,
            placing.lead,
            placing.outcome,
            placing.rule,
        )
    Placement.objects.all().delete()
    placements_refresh(incident_ids=list(ids.values()))
    assert view() == incremental


def test_a_fact_that_changes_moves_every_member_of_its_unit(world: World) -> None:
    first = incident(world.contract, at(1), node="node-1")
    again = incident(world.contract, **restart(at(1.3)), node="node-1")
    placements_refresh(incident_ids=[first.pk])
    assert Placement.objects.get(pk=first.pk).outcome == "resolved"
    placements_refresh(incident_ids=[again.pk])
    assert Placement.objects.get(pk=first.pk).rule == "relapse"
    assert year_report(year=world.year).counted == 1
    Incident.objects.filter(pk=again.pk).update(node="node-2", rank=77)
    placements_refresh(incident_ids=[again.pk])
    assert Placement.objects.get(pk=first.pk).outcome == "resolved"
    report = year_report(year=world.year)
    assert (report.counted, report.resolved) == (2, 1)


def test_regrouping_splits_and_merges_units(world: World) -> None:
    event = RootEvent.objects.create(contract=world.contract, first_at=at(1), last_at=at(9))
    rows = [incident(world.contract, at(1 + 4 * n), root_event=event) for n in range(3)]
    placements_refresh(incident_ids=[row.pk for row in rows])
    assert year_report(year=world.year).counted == 1
    other = RootEvent.objects.create(contract=world.contract, first_at=at(1), last_at=at(1))
    Incident.objects.filter(pk=rows[0].pk).update(root_event=other)
    placements_refresh(incident_ids=[rows[0].pk])
    assert year_report(year=world.year).counted == 2
    Incident.objects.filter(pk=rows[0].pk).update(root_event=event)
    placements_refresh(incident_ids=[rows[0].pk])
    assert year_report(year=world.year).counted == 1


def test_overlapping_incidents_of_one_job_waste_its_time_once(world: World) -> None:
    alone = incident(world.contract, at(1), run="alone")
    twice = [incident(world.contract, at(1), run="twice", rank=rank) for rank in range(4)]
    placements_refresh(incident_ids=[alone.pk, *(row.pk for row in twice)])
    waste = dict(Placement.objects.values_list("pk", "waste_actual_ms"))
    expected = 2048 * (130_000 + 500)
    assert waste[alone.pk] == expected
    stalls = sorted(waste[row.pk] for row in twice)
    assert stalls == [2048 * 500, 2048 * 500, 2048 * 500, expected]


def test_placing_takes_the_same_number_of_queries_for_one_and_for_many(world: World) -> None:
    def queries(count: int, day: int) -> int:
        rows = [incident(world.contract, at(24 * day + 3 * n), run=f"run-{n % 7}") for n in range(count)]
        with CaptureQueriesContext(connection) as captured:
            placements_refresh(incident_ids=[row.pk for row in rows])
        # SQLite takes few parameters a statement, so there one insert becomes several.
        inserts = [query for query in captured if 'INSERT INTO "guarantee_placement"' in query["sql"]]
        return len(captured) - len(inserts) + 1

    one, many = queries(1, 1), queries(300, 20)
    assert many == one
    assert one <= 18


def test_a_report_takes_few_queries(world: World) -> None:
    rows = [incident(world.contract, at(3 * n)) for n in range(30)]
    placements_refresh(incident_ids=[row.pk for row in rows])
    with CaptureQueriesContext(connection) as captured:
        year_report(year=world.year)
    assert len(captured) <= 8


def test_rebuilding_places_everything_anew(world: World) -> None:
    rows = [incident(world.contract, at(3 * n)) for n in range(5)]
    assert placements_rebuild(contract=world.contract) == 5
    assert Placement.objects.filter(outcome="resolved").count() == len(rows)


def test_a_guarantee_that_is_added_places_what_it_covers(world: World) -> None:
    contract = contract_create(
        organisation=world.organisation,
        number="LATE",
        name="Late",
        currency="EUR",
        time_zone="UTC",
        starts_on=datetime.date(2026, 3, 1),
        ends_on=datetime.date(2028, 3, 1),
        actor=None,
    )
    before, after = incident(contract, at(1)), incident(contract, at(24 * 60))
    placements_refresh(incident_ids=[before.pk, after.pk])
    year = contract.years.get(number=1)
    assert year_report(year=year).counted == 0
    contract_guarantee_add(contract=contract, guarantee_from=datetime.date(2026, 10, 1), actor=None)
    report = year_report(year=year)
    assert (report.counted, report.not_counted, report.year.partial) == (1, 1, True)
    assert Placement.objects.get(pk=before.pk).rule == "outside_guarantee"


def test_facts_are_taken_whole(world: World) -> None:
    row = incident(world.contract, at(1))
    facts = incident_facts(row)
    missing = [field.name for field in fields(IncidentFacts) if getattr(facts, field.name) in (None, "", {})]
    assert set(missing) <= {"root_event", "trigger_detail", "run_ended_at", "run_ended_step"}
    assert facts.id == str(row.public_id)


def test_a_year_between_two_incidents_is_not_loaded(world: World) -> None:
    """An incident a day for a year in one job: the first and the last change, and nothing else comes near them."""
    rows = [incident(world.contract, at(24 * day)) for day in range(365)]
    placements_refresh(incident_ids=[row.pk for row in rows])
    assert year_report(year=world.year).counted == 365
    loaded: list[int] = []

    def count(instance: Incident, **_: object) -> None:
        loaded.append(instance.pk)

    post_init.connect(count, sender=Incident)
    try:
        placements_refresh(incident_ids=[rows[0].pk, rows[-1].pk])
    finally:
        post_init.disconnect(count, sender=Incident)
    assert sorted(loaded) == [rows[0].pk, rows[-1].pk]


def test_what_lies_near_either_end_is_loaded(world: World) -> None:
    same = {"node": "node-1", "run": "run-1"}
    rows = [incident(world.contract, at(24 * day)) for day in range(100)]
    first, last = incident(world.contract, at(1), **same), incident(world.contract, at(2300), **same)
    placements_refresh(incident_ids=[row.pk for row in (*rows, first, last)])
    again = [incident(world.contract, **{**restart(at(hours)), **same}) for hours in (1.3, 2300.3)]
    placements_refresh(incident_ids=[row.pk for row in again])
    assert {Placement.objects.get(pk=row.pk).rule for row in (first, last)} == {"relapse"}


def test_thousands_at_once_are_placed_a_thousand_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is placed does not depend on where one portion ends: a crash loop lies across each end."""
    monkeypatch.setattr(placements, "CHUNK", 3)
    same = {"node": "node-1", "run": "run-1"}
    rows = [incident(world.contract, **{**restart(at(0.6 * n)), **same}) for n in range(11)]
    portions: list[int] = []

    def loads(contracts: Any, changed: list[int], held: Any) -> Any:
        portions.append(len(changed))
        return neighbourhood(contracts, changed, held)

    monkeypatch.setattr(placements, "neighbourhood", loads)
    placements_refresh(incident_ids=[row.pk for row in reversed(rows)])
    assert portions == [3, 3, 3, 2]
    assert Placement.objects.filter(lead=True).count() == 1
    assert Placement.objects.values("unit_key").distinct().count() == 1
