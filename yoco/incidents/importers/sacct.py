"""Slurm accounting, as `sacct --parsable2 --duplicates` prints it: a row for each job and for each of its steps.

Only a job's own row counts, and only states that say the infrastructure failed. A FAILED job is not one of them: most
are the user's own errors, and Slurm does not know the difference.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from django.utils.translation import gettext as _

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

EXPORT = "sacct --parsable2 --format=JobID,JobName,State,Start,End,AllocNodes,AllocTRES,NodeList"
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
                sentence = _("The first line does not name %(fields)s. Export with: %(command)s")
                raise SpecError(sentence % {"fields": ", ".join(missing), "command": EXPORT})
            continue
        if len(fields) != len(header):
            sentence = _("The header has %(header)s fields, this line has %(fields)s.")
            yield Rejected(number, sentence % {"header": len(header), "fields": len(fields)}, text)
            continue
        try:
            yield _record(number, dict(zip(header, fields, strict=True)), spec)
        except RowError as error:
            yield Rejected(number, str(error), text)
    if header is None:
        raise SpecError(_("The file is empty; its first line must name the fields."))


def _record(number: int, row: dict[str, str], spec: ImportSpec) -> Record:
    job = row["JobID"]
    if STEP_ID.fullmatch(job):
        return Counted(_("job steps"))
    if not JOB_ID.fullmatch(job):
        raise RowError(_("“%(text)s” is no job id.") % {"text": job[:40]})
    state = row["State"].split(" ")[0].rstrip("+")
    if state not in STATES:
        raise RowError(_("“%(text)s” is no job state.") % {"text": state[:40]})
    if state not in INFRASTRUCTURE:
        return Counted(_("jobs %(state)s") % {"state": state})
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
        raise RowError(
            _("The row does not say how many GPUs the job had; export AllocTRES too, or set gpus for every row.")
        )
    gpus = whole_number(text, "gpus")
    nodes = row.get("AllocNodes") or row.get("NNodes") or ""
    per_node = gpus // int(nodes) if nodes.isdigit() and int(nodes) and gpus % int(nodes) == 0 else None
    return {"run_id": f"slurm-{job}", "name": row.get("JobName", "")[:200], "gpus": gpus, "gpus_per_node": per_node}
