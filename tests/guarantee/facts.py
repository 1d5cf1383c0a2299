"""Incidents for tests of the guarantee: facts for the pure rules, and rows as the ingest stores them."""

import datetime
import itertools
import uuid
from typing import Any

from yoco.guarantee.evidence import IncidentFacts
from yoco.guarantee.rules import DEFAULT_TERMS, Terms, Year, place
from yoco.incidents.models import Incident, IncidentState, Run

START = datetime.datetime(2026, 8, 31, 22, tzinfo=datetime.UTC)  # 1 September 2026 in Madrid
END = datetime.datetime(2027, 8, 31, 22, tzinfo=datetime.UTC)
COUNTER = itertools.count()


def at(hours: float) -> datetime.datetime:
    """So many hours into the first contract year."""
    return START + datetime.timedelta(hours=hours)


def evidence(started_at: datetime.datetime, *, step: int = 1200) -> dict[str, Any]:
    """Everything that proves a migration without loss, for a failure that began at that time."""
    second = datetime.timedelta(seconds=1)
    return {
        "started_at": started_at,
        "detected_at": started_at + 2 * second,
        "quiesced_at": started_at + 4 * second,
        "spare_ready_at": started_at + 30 * second,
        "state_moved_at": started_at + 120 * second,
        "state_verified_at": started_at + 125 * second,
        "resumed_at": started_at + 130 * second,
        "last_committed_step": step,
        "first_step_after": step + 1,
        "samples_before": step * 64,
        "samples_after": (step + 1) * 64,
        "samples_per_step": 64,
        "checkpoint_loaded": False,
        "state_source": "replica",
        "state_bytes": 6_442_450_944,
        "digest_algorithm": "xxh3-128",
        "digest_sent": "ab" * 16,
        "digest_received": "ab" * 16,
        "resolution": "live_migration",
    }


def restart(started_at: datetime.datetime, *, step: int = 1200, checkpoint: int = 1000) -> dict[str, Any]:
    """A restart from a checkpoint: everything since then was run again."""
    return {
        "started_at": started_at,
        "detected_at": started_at + datetime.timedelta(minutes=10),
        "spare_ready_at": started_at + datetime.timedelta(minutes=15),
        "resumed_at": started_at + datetime.timedelta(minutes=30),
        "last_committed_step": step,
        "first_step_after": checkpoint + 1,
        "samples_before": step * 64,
        "samples_after": (checkpoint + 1) * 64,
        "samples_per_step": 64,
        "checkpoint_loaded": True,
        "state_source": "storage",
        "resolution": "checkpoint_restart",
    }


def number(n: int) -> str:
    """A readable id whose order is that of `n`."""
    return str(uuid.UUID(int=n))


def facts(started_at: datetime.datetime | None = None, /, **changes: Any) -> IncidentFacts:
    """An unplanned failure that is resolved without loss, unless changed; each on its own root event."""
    n = next(COUNTER)
    base: dict[str, Any] = {
        "id": number(n),
        "run": "run-1",
        "kind": "unplanned",
        "signal": "xid",
        "xid": 79,
        "node": f"node-{n}",
        "rank": n,
        "root_event": f"event-{n}",
        **evidence(started_at or at(1)),
    }
    return IncidentFacts(**{**base, **changes})


def failed(started_at: datetime.datetime | None = None, /, **changes: Any) -> IncidentFacts:
    """An unplanned failure after which the job restarted from a checkpoint."""
    blank = {"quiesced_at": None, "state_moved_at": None, "state_verified_at": None, "state_bytes": None}
    blank |= {"digest_sent": "", "digest_received": "", "digest_algorithm": ""}
    return facts(started_at, **{**blank, **restart(started_at or at(1)), **changes})


def year(terms: Terms | None = DEFAULT_TERMS, **changes: Any) -> Year:
    """The first year of the contract of `tests.people`, open."""
    base: dict[str, Any] = {
        "id": "year-1",
        "starts_at": START,
        "ends_at": END,
        "guaranteed_from": START,
        "guaranteed_until": END,
        "closes_at": END + datetime.timedelta(days=30),
        "terms": terms,
    }
    return Year(**{**base, **changes})


def placed(one: IncidentFacts, terms: Terms = Terms(), **changes: Any) -> tuple[str, str]:  # noqa: B008
    """Outcome and rule of an incident that stands alone."""
    placing = place(one, year=year(terms, **changes))
    return placing.outcome, placing.rule


def incident(contract: Any, started_at: datetime.datetime | None = None, /, **changes: Any) -> Incident:
    """A stored incident, resolved without loss unless changed. `run` names its workload."""
    n = next(COUNTER)
    name = changes.pop("run", "run-1")
    run, _ = Run.objects.get_or_create(contract=contract, run_id=name, defaults={"gpus": 2048})
    base: dict[str, Any] = {
        "contract": contract,
        "run": run,
        "kind": "unplanned",
        "signal": "xid",
        "xid": 79,
        "node": f"node-{n}",
        "rank": n,
        "gpus": 2048,
        "state": IncidentState.RESOLVED,
        "step_ms": 500,
        **evidence(started_at or at(1)),
    }
    return Incident.objects.create(**{**base, **changes})
