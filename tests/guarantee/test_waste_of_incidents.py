"""From an incident's phases to the terms of its waste: what was measured is used, and no more is claimed."""

import datetime
from typing import Any

import pytest

from tests.guarantee.facts import at, incident, restart
from tests.people import World
from yoco.guarantee.facts import incident_facts, waste_input
from yoco.incidents.models import IncidentState
from yoco.waste.model import IncidentWaste, incident_waste

SECOND = 1000
MINUTE = 60 * SECOND
G = 2048


def waste(world: World, *arguments: Any, **changes: Any) -> IncidentWaste:
    row = incident(world.contract, *arguments, **changes)
    return incident_waste(waste_input(row, incident_facts(row)))


def test_a_migration_costs_detection_pause_and_the_redone_step(world: World) -> None:
    one = waste(world, at(1), last_checkpoint_at=at(0.5))
    assert one.terms == {"detection": G * 2 * SECOND, "migration": G * 128 * SECOND, "step_redo": G * 500}
    assert one.counterfactual_terms["recompute"] == G * 30 * MINUTE
    assert one.estimated == ("queue", "restart")


def test_a_restart_costs_what_was_measured_and_the_time_since_the_checkpoint(world: World) -> None:
    one = waste(world, **restart(at(1)), last_checkpoint_at=at(1) - datetime.timedelta(minutes=40))
    assert one.terms == {
        "recompute": G * 40 * MINUTE,
        "detection": G * 10 * MINUTE,
        "queue": G * 5 * MINUTE,
        "restart": G * 15 * MINUTE,
    }
    assert (one.saved, one.estimated) == (0, ())


def test_a_migration_that_failed_saves_nothing(world: World) -> None:
    tried = {**restart(at(1)), "attempts": [{"at": "x", "outcome": "failed", "reason": "spare died"}]}
    one = waste(world, **tried, last_checkpoint_at=at(0.5))
    assert one.saved == 0
    assert one.actual == G * (30 + 30) * MINUTE


@pytest.mark.parametrize("lie", [{"checkpoint_loaded": True}, {"first_step_after": 1000}, {"resolution": "abandoned"}])
def test_a_claimed_migration_that_went_back_is_no_saving(world: World, lie: dict[str, Any]) -> None:
    assert waste(world, at(1), **lie).saved <= 0


def test_an_announced_move_lets_the_job_run_until_it_is_quiet(world: World) -> None:
    one = waste(world, at(1), kind="planned", signal="operator", xid=None)
    assert one.terms == {"migration": G * 126 * SECOND, "step_redo": G * 500}
    assert one.saved == G * 20 * MINUTE - one.actual
    preventive = waste(world, at(1), kind="preventive", signal="ecc", xid=None)
    assert (preventive.saved, preventive.potential > 0) == (0, True)


def test_an_open_incident_and_an_unexplained_silence_have_no_waste_yet(world: World) -> None:
    one = waste(world, at(1), state=IncidentState.OPEN, resumed_at=None, resolution="")
    assert (one.actual, one.estimated) == (0, ("open",))


def test_waste_is_at_most_the_time_since_the_checkpoint(world: World) -> None:
    for row in (
        incident(world.contract, at(1), last_checkpoint_at=at(1), step_ms=10**6),
        incident(world.contract, **restart(at(1)), last_checkpoint_at=at(0.2)),
    ):
        assert row.resumed_at is not None
        since = (row.resumed_at - row.last_checkpoint_at) / datetime.timedelta(milliseconds=1)
        assert incident_waste(waste_input(row, incident_facts(row))).actual <= G * since
