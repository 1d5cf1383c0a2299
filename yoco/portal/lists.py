"""Lists of incidents as files, written as they are read, so that a year of any size takes the same memory."""

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

from django.db.models import QuerySet

from yoco.core.clock import milliseconds_between
from yoco.core.downloads import cell
from yoco.guarantee.models import Outcome
from yoco.incidents.models import Incident

COLUMNS = (
    "incident_id",
    "run_id",
    "run",
    "outcome",
    "rule",
    "kind",
    "signal",
    "xid",
    "node",
    "rank",
    "gpus",
    "origin",
    "started_at",
    "detected_at",
    "resumed_at",
    "until_resumed_ms",
    "last_committed_step",
    "first_step_after",
    "checkpoint_loaded",
    "wasted_gpu_ms",
    "without_migration_gpu_ms",
)
FACTS = (
    "signal",
    "xid",
    "node",
    "rank",
    "gpus",
    "origin",
    "last_committed_step",
    "first_step_after",
    "checkpoint_loaded",
)
TIMES = ("started_at", "detected_at", "resumed_at")
CHUNK = 2000


def _row(incident: Incident) -> dict[str, Any]:
    """An incident's facts as the API names them, where it is placed, and what it cost. Times are UTC."""
    placement = getattr(incident, "placement", None)
    facts: dict[str, Any] = {name: getattr(incident, name) for name in FACTS}
    for name in TIMES:
        at = getattr(incident, name)
        facts[name] = at.isoformat().replace("+00:00", "Z") if at else None
    return facts | {
        "incident_id": str(incident.public_id),
        "run_id": incident.run.run_id,
        "run": incident.run.name,
        "outcome": placement.outcome if placement else Outcome.PENDING.value,
        "kind": placement.kind if placement else incident.kind,
        "rule": placement.rule if placement else "",
        "until_resumed_ms": milliseconds_between(incident.started_at, incident.resumed_at),
        "wasted_gpu_ms": placement.waste_actual_ms if placement else None,
        "without_migration_gpu_ms": placement.waste_counterfactual_ms if placement else None,
    }


def incidents_csv(rows: QuerySet[Incident]) -> Iterator[str]:
    """A header, then one line each; no text can be taken for a formula."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\r\n")
    writer.writeheader()
    for incident in rows.iterator(chunk_size=CHUNK):
        writer.writerow({name: cell(value) for name, value in _row(incident).items()})
        if buffer.tell() > 64 * 1024:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()


def incidents_json(rows: QuerySet[Incident]) -> Iterator[str]:
    """One object with the list `incidents`, a line each."""
    yield '{"incidents": ['
    before = "\n"
    for incident in rows.iterator(chunk_size=CHUNK):
        row = _row(incident)
        yield before + json.dumps({name: row[name] for name in COLUMNS}, ensure_ascii=False)
        before = ",\n"
    yield "\n]}\n"
