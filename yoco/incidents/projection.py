"""From reports to the facts of an incident: a pure function of the set of its reports, not of their arrival.

The reporter is the party that would owe the credit, so bad news sticks: no further report makes an incident look better
than the reports before it, except by evidence that was missing. Reports are read in the order in which their senders
wrote them; null says nothing. The rule of each field:

| fields | rule |
|---|---|
| `kind` | the worst that any report says: unplanned, preventive, planned |
| `signal` | of all that are named: a failure, then a reading of the hardware, then a link, then an operator |
| `trigger_detail` | every key that any report gives; its first value, but a number rather than a word |
| `xid`, `node`, `rank`, `gpu_uuid`, `root_event_named` | the first that is stated, the detection's if it says so |
| run, `gpus`, `gpus_per_node`, `strategy` | the detection's |
| `started_at` | the earliest moment that any report gives, at most a day before the detection's, so that none moves \
it out of its year; without any, when the detection was told |
| `detected_at` | the earliest stated |
| `checkpoint_loaded` | true if any report says so; false only if one says that and none the contrary |
| `resumed_at` | the latest that any report from the closing one on states: a stall never shrinks |
| `resolution` | the worst of any report: checkpoint_restart, abandoned, live_migration, path_failover |
| `state_source` | `storage` if any report says so; else as the evidence |
| evidence: the phases between, steps, samples, last checkpoint, bytes, digests | until the closing report the latest; \
from it on what all reports agree on: told in two ways it is told in none, and so not evidenced |
| `preempted_gpus`, `preempted_ms`, `step_ms` | the largest that any report states: a cost never shrinks |
| `attempts` | all that any report lists, in order of time |
| `spare_node`, `spare_origin` | the latest; they decide nothing |
| `state` | resolved (over) once a closing report exists; whether without loss is for the evidence |
"""

import datetime
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from yoco.incidents.payload import Phases, Report
from yoco.incidents.trigger import FAILURE_SIGNALS, has_reading

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
PLACE = ("xid", "node", "rank", "gpu_uuid", "root_event_named")
COST = ("preempted_gpus", "preempted_ms", "step_ms")
LATEST = ("spare_node", "spare_origin")
EVIDENCE = (
    *(name for name in PHASES if name not in ("started_at", "detected_at")),
    *(name for name in PROGRESS if name != "checkpoint_loaded"),
    "state_source",
    "state_bytes",
    "digest_algorithm",
    "digest_sent",
    "digest_received",
)
# The worst first. A healed path can leave the ratio, a migration has to prove itself.
KINDS = ("unplanned", "preventive", "planned")
RESOLUTIONS = ("checkpoint_restart", "abandoned", "live_migration", "path_failover")
START_CORRECTED = datetime.timedelta(days=1)  # how far back later reports can move the start
SIGNAL_RANKS = {**dict.fromkeys(FAILURE_SIGNALS, 0), "link": 2, "operator": 3}  # what else there is: 1


def report_order(report: Report) -> tuple[Any, ...]:
    """Reports of one incident are read in the order their senders wrote them."""
    return (report.sent_at, report.agent_id, report.boot_id, report.seq, report.id)


def detection_of(reports: Sequence[Report]) -> Report:
    """The report that told first of the incident, of its reports in `report_order`."""
    return next((report for report in reports if report.type == "incident.detected"), reports[0])


def project(reports: Iterable[Report]) -> dict[str, Any]:
    """The columns of the incident that these reports tell of, by the rules above."""
    ordered = sorted(reports, key=report_order)
    first = detection_of(ordered)
    stated = [_stated(_columns(report)) for report in (first, *(other for other in ordered if other is not first))]
    in_order = [_stated(_columns(report)) for report in ordered]
    facts = dict(UNKNOWN)
    facts["kind"] = min((report.kind for report in ordered), key=KINDS.index)
    facts["signal"] = min(
        (report.trigger.signal for report in (first, *ordered)), key=lambda signal: SIGNAL_RANKS.get(signal, 1)
    )
    facts["trigger_detail"] = _detail(stated)
    facts["gpus"] = first.workload.gpus
    facts["gpus_per_node"] = first.workload.gpus_per_node
    facts["strategy"] = first.workload.strategy or ""
    facts.update({name: values[0] for name in PLACE if (values := _values(stated, name))})
    facts.update({name: values[-1] for name in LATEST if (values := _values(in_order, name))})
    facts.update({name: max(values) for name in COST if (values := _values(stated, name))})
    facts.update(_evidence(ordered, in_order))
    if "storage" in _values(stated, "state_source"):
        facts["state_source"] = "storage"
    if loaded := _values(stated, "checkpoint_loaded"):
        facts["checkpoint_loaded"] = any(loaded)
    if resolutions := _values(stated, "resolution"):
        facts["resolution"] = min(resolutions, key=RESOLUTIONS.index)
    facts["attempts"] = _attempts(ordered)
    facts["state"] = "resolved" if any(report.type == "incident.resolved" for report in ordered) else "open"
    facts["detected_at"] = min(_values(stated, "detected_at"), default=None)
    facts["started_at"] = _start(stated, first.sent_at)
    if facts["resumed_at"] is not None:
        facts["resumed_at"] = max(facts["resumed_at"], facts["started_at"])
    return facts


def _values(stated: Iterable[dict[str, Any]], name: str) -> list[Any]:
    return [columns[name] for columns in stated if name in columns]


def _stated(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in columns.items() if value is not None and value != "" and value != {}}


def _columns(report: Report) -> dict[str, Any]:
    """What one report says of each column."""
    where = report.where
    columns: dict[str, Any] = {
        "xid": report.trigger.xid,
        "trigger_detail": report.trigger.detail,
        "node": where and where.node,
        "rank": where and where.rank,
        "gpu_uuid": where and where.gpu_uuid,
        "root_event_named": report.root_event_id,
        "resolution": report.resolution,
    }
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
    return columns


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _detail(stated: Iterable[dict[str, Any]]) -> dict[str, Any]:
    detail: dict[str, Any] = {}
    for said in _values(stated, "trigger_detail"):
        for key, value in said.items():
            if key not in detail or (has_reading(value) and not has_reading(detail[key])):
                detail[key] = value
    return detail


def _evidence(ordered: Sequence[Report], in_order: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    """While attempts go on, a later statement replaces an earlier one. What closes the incident has to agree."""
    types = [report.type for report in ordered]
    closing = types.index("incident.resolved") if "incident.resolved" in types else len(types)
    for name in EVIDENCE:
        final = _values(in_order[closing:], name)
        if final and name == "resumed_at":
            yield name, max(final)
        elif final:
            yield name, final[0] if all(value == final[0] for value in final) else UNKNOWN[name]
        elif before := _values(in_order[:closing], name):
            yield name, before[-1]


def _attempts(ordered: Iterable[Report]) -> list[dict[str, Any]]:
    told = {
        (attempt.at.astimezone(datetime.UTC), attempt.outcome, attempt.reason or ""): attempt.reason
        for report in ordered
        for attempt in report.attempts or ()
    }
    return [
        {"at": at.isoformat(), "outcome": outcome, "reason": told[at, outcome, reason]}
        for at, outcome, reason in sorted(told)
    ]


def _start(stated: Sequence[dict[str, Any]], sent_at: datetime.datetime) -> datetime.datetime:
    first, moments = (
        [columns[name] for columns in some for name in PHASES if name in columns] for some in (stated[:1], stated)
    )
    if not any("started_at" in columns or "detected_at" in columns for columns in stated):
        moments.append(sent_at.astimezone(datetime.UTC))
    earliest: datetime.datetime = min(moments)
    return max(earliest, min(first, default=sent_at.astimezone(datetime.UTC)) - START_CORRECTED)
