"""From reports to the facts of an incident: a pure function of the set of its reports, not of their arrival."""

import datetime
from collections.abc import Iterable
from typing import Any

from yoco.incidents.payload import Phases, Report

PHASES = Phases.__struct_fields__
PROGRESS = (
    "last_committed_step",
    "first_step_after",
    "samples_before",
    "samples_after",
    "samples_per_step",
    "checkpoint_loaded",
    "last_checkpoint_step",
    "last_checkpoint_at",
)
# The defaults are those of the columns: a fact that nobody stated.
UNKNOWN: dict[str, Any] = {
    "xid": None,
    "trigger_detail": {},
    "node": "",
    "rank": None,
    "gpu_uuid": "",
    "gpus_per_node": None,
    "strategy": "",
    "step_ms": None,
    "state_source": "",
    "state_bytes": None,
    "digest_algorithm": "",
    "digest_sent": "",
    "digest_received": "",
    "spare_node": "",
    "spare_origin": "",
    "preempted_gpus": None,
    "preempted_ms": None,
    "resolution": "",
    "attempts": [],
    "root_event_named": None,
    **dict.fromkeys(PHASES),
    **dict.fromkeys(PROGRESS),
}


def report_order(report: Report) -> tuple[Any, ...]:
    """Reports of one incident are read in the order their senders wrote them."""
    return (report.sent_at, report.agent_id, report.boot_id, report.seq, report.id)


def project(reports: Iterable[Report]) -> dict[str, Any]:
    """The columns of the incident that these reports tell of.

    A later statement replaces an earlier one and null replaces nothing. What was true at detection stays: the size of
    the job, and what failed, unless an `incident.amended` corrects the latter.
    """
    ordered = sorted(reports, key=report_order)
    first = next((report for report in ordered if report.type == "incident.detected"), ordered[0])
    facts = dict(UNKNOWN)
    facts.update(_detection(first))
    facts["gpus"] = first.workload.gpus
    facts["gpus_per_node"] = first.workload.gpus_per_node
    facts["strategy"] = first.workload.strategy or ""
    for report in ordered:
        if report is not first:
            amends = report.type == "incident.amended"
            facts.update(
                {
                    name: value
                    for name, value in _detection(report).items()
                    if amends or facts[name] == UNKNOWN.get(name)
                }
            )
        facts.update(_course(report))
    facts["state"] = "resolved" if any(report.type == "incident.resolved" for report in ordered) else "open"
    facts["started_at"] = _start(facts, first.sent_at)
    return facts


def _stated(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in columns.items() if value is not None and value != "" and value != {}}


def _detection(report: Report) -> dict[str, Any]:
    where = report.where
    return _stated(
        {
            "kind": report.kind,
            "signal": report.trigger.signal,
            "xid": report.trigger.xid,
            "trigger_detail": report.trigger.detail,
            "node": where and where.node,
            "rank": where and where.rank,
            "gpu_uuid": where and where.gpu_uuid,
            "root_event_named": report.root_event_id,
        }
    )


def _course(report: Report) -> dict[str, Any]:
    columns: dict[str, Any] = {"resolution": report.resolution, "attempts": _attempts(report) or None}
    if (phases := report.phases) is not None:
        for name in PHASES:
            at = getattr(phases, name)
            columns[name] = at and at.astimezone(datetime.UTC)
    if (progress := report.progress) is not None:
        columns.update({name: getattr(progress, name) for name in PROGRESS})
        if (at := progress.last_checkpoint_at) is not None:
            columns["last_checkpoint_at"] = at.astimezone(datetime.UTC)
        columns["step_ms"] = _milliseconds(progress.step_seconds)
    if (state := report.state) is not None:
        columns["state_source"] = state.source
        columns["state_bytes"] = state.bytes
        columns["digest_algorithm"] = state.digest_algorithm
        columns["digest_sent"] = state.digest_sent
        columns["digest_received"] = state.digest_received
    if (spare := report.spare) is not None:
        columns["spare_node"] = spare.node
        columns["spare_origin"] = spare.origin
        if spare.preempted is not None:
            columns["preempted_gpus"] = spare.preempted.gpus
            columns["preempted_ms"] = _milliseconds(spare.preempted.lost_seconds)
    return _stated(columns)


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _attempts(report: Report) -> list[dict[str, Any]]:
    return [
        {"at": attempt.at.astimezone(datetime.UTC).isoformat(), "outcome": attempt.outcome, "reason": attempt.reason}
        for attempt in report.attempts or ()
    ]


def _start(facts: dict[str, Any], sent_at: datetime.datetime) -> datetime.datetime:
    """When it began: as stated, else when detected, else when told; never after a later phase another report names."""
    moments: list[datetime.datetime] = [at for name in PHASES if (at := facts[name]) is not None]
    stated: datetime.datetime = facts["started_at"] or facts["detected_at"] or sent_at.astimezone(datetime.UTC)
    return min([stated, *moments])
