"""Slurm accounting, as `sacct --parsable2 --duplicates` prints it: a row for each job and for each of its steps.

Only a job's own row counts, and only states that say the infrastructure failed. A FAILED job is not one of them: most
are the user's own errors, and Slurm does not know the difference.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from yoco.incidents.importers.records import (
    Counted,
    Imported,
    ImportSpec,
    Record,
    Rejected,
    RowError,
    SpecError,
    instant,
    report_of,
    whole_number,
)
from yoco.incidents.importers.records import written as rfc3339

REQUIRED = ("JobID", "State", "End")
INFRASTRUCTURE = {"NODE_FAIL", "BOOT_FAIL"}
STATES = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "CONFIGURING", "DEADLINE", "FAILED", "NODE_FAIL",
    "OUT_OF_MEMORY", "PENDING", "PREEMPTED", "REQUEUED", "RESIZING", "REVOKED", "RUNNING", "SUSPENDED", "TIMEOUT",
}  # fmt: skip
JOB_ID = re.compile(r"\d+(_\d+|_\[[\d,%-]+\]|\+\d+)?")
STEP_ID = re.compile(r"\d+(_\d+|\+\d+)?\.\w+(\+\d+)?")
GPUS = re.compile(r"(?:^|,)gres/gpu(?::[\w.-]+)?=(\d+)")


def sacct_read(lines: Iterable[str], spec: ImportSpec) -> Iterator[Record]:
    """One report for each job that the infrastructure ended; all other rows are counted."""
    header: list[str] | None = None
    for number, raw in enumerate(lines, start=1):
        text = raw.rstrip("\r\n")
        if not text.strip():
            continue
        fields = text.split("|")
        if header is None:
            header = fields
            missing = [name for name in REQUIRED if name not in header]
            if missing:
                raise SpecError(
                    f"The first line has no {' and '.join(missing)}. Export with: sacct --parsable2 "
                    "--format=JobID,JobName,State,Start,End,AllocNodes,AllocTRES,NodeList"
                )
            continue
        if len(fields) != len(header):
            yield Rejected(number, f"The header has {len(header)} fields, this line has {len(fields)}.", text)
            continue
        try:
            yield _record(number, dict(zip(header, fields, strict=True)), spec)
        except RowError as error:
            yield Rejected(number, str(error), text)
    if header is None:
        raise SpecError("The file is empty; its first line must name the fields.")


def _record(number: int, row: dict[str, str], spec: ImportSpec) -> Record:
    job = row["JobID"]
    if STEP_ID.fullmatch(job):
        return Counted("job steps")
    if not JOB_ID.fullmatch(job):
        raise RowError(f"“{job[:40]}” is no job id.")
    state = row["State"].split(" ")[0].rstrip("+")
    if state not in STATES:
        raise RowError(f"“{state[:40]}” is no job state.")
    if state not in INFRASTRUCTURE:
        return Counted(f"jobs {state}")
    at = instant(row["End"], spec)
    nodes = row.get("NodeList", "")
    body: dict[str, Any] = {
        "type": "incident.resolved",
        "workload": _workload(job, row, spec),
        "kind": "unplanned",
        "trigger": {"signal": "heartbeat_lost", "detail": {"slurm_state": state, "nodes": nodes}},
        "where": {"node": nodes if re.fullmatch(r"[\w.-]+", nodes) else None},
        "phases": {"started_at": rfc3339(at)},
        "resolution": "abandoned",
    }
    return Imported(number, report_of(spec, identity=f"{job}:{rfc3339(at)}", body=body, told_at=at))


def _workload(job: str, row: dict[str, str], spec: ImportSpec) -> dict[str, Any]:
    found = GPUS.search(row.get("AllocTRES", "")) or GPUS.search(row.get("ReqTRES", ""))
    text = found[1] if found else spec.constants.get("gpus")
    if text is None:
        raise RowError("The row does not say how many GPUs the job had; add AllocTRES, or say --set gpus=N.")
    gpus = whole_number(text, "gpus")
    nodes = row.get("AllocNodes") or row.get("NNodes") or ""
    per_node = gpus // int(nodes) if nodes.isdigit() and int(nodes) and gpus % int(nodes) == 0 else None
    return {"run_id": f"slurm-{job}", "name": row.get("JobName", "")[:200], "gpus": gpus, "gpus_per_node": per_node}
