"""A broken agent, or a stolen key, that reports the same failure over and over: the next report costs little more."""

import datetime
import time

from tests.guarantee.facts import at, evidence
from yoco.guarantee.evidence import IncidentFacts
from yoco.guarantee.rules import units


def test_a_storm_of_one_failure_is_grouped_at_once() -> None:
    """Comparing each pair of 2,000 incidents within the relapse window by all their facts took 54 s; this takes one."""
    began = at(100)
    storm = [
        IncidentFacts(
            id=f"{number:05}",
            run="run",
            kind="unplanned",
            signal="xid",
            xid=79,
            node="node-1",
            **evidence(began + datetime.timedelta(milliseconds=number)),
        )
        for number in range(2000)
    ]
    started = time.perf_counter()
    assert [len(unit) for unit in units(storm, [])] == [2000]
    assert time.perf_counter() - started < 8
