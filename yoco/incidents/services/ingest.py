"""Taking in reports: each stored once, its incident projected anew, in a constant number of queries."""

import datetime
import hashlib
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from django.db import transaction
from django.db.models import Q, QuerySet

from yoco.accounts.models import AgentKey
from yoco.contracts.locks import contracts_lock_with_terms
from yoco.contracts.models import Contract
from yoco.core.bulk import rows_write
from yoco.core.compiled import compiled
from yoco.incidents.models import Incident, IncidentState, Origin, RawReport, ReportSource, Run
from yoco.incidents.payload import Invalid, Report, Unreadable, report_take
from yoco.incidents.projection import UNKNOWN, detection_of, project, report_order
from yoco.incidents.services.root_events import root_events_assign
from yoco.incidents.services.runs import BootNews, boots_upsert, runs_upsert
from yoco.incidents.services.silence import SILENCE_OPEN, silences_explain

Status = Literal["created", "duplicate", "conflict", "invalid"]
FACT_FIELDS = list(dict.fromkeys([*UNKNOWN, "kind", "signal", "gpus", "state", "started_at"]))
UPSERT_FIELDS = [*FACT_FIELDS, "origin", "run", "revision", "root_event", "first_received_at", "last_received_at"]
REPORT = msgspec.json.Decoder(Report)


@dataclass(frozen=True, slots=True)
class ReportResult:
    """The answer for one report, in the order of the request."""

    id: str | None
    status: Status
    reason: str | None = None
    path: str | None = None


@dataclass(slots=True)
class IngestOutcome:
    """What became of each report, and the incidents whose facts or root event changed.

    `contract` is locked until the transaction ends, with its years and terms prefetched; None if nothing was stored.
    `incidents` are whole rows by key, `created` the keys of those that are new.
    """

    results: list[ReportResult] = field(default_factory=list)
    incident_ids: set[int] = field(default_factory=set)
    contract: Contract | None = None
    incidents: dict[int, Incident] = field(default_factory=dict)
    created: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Draft:
    index: int
    report: Report
    body: bytes
    sha256: str
    conflict: bool = False


@dataclass(slots=True)
class _Told:
    """A stored first content, or one about to be."""

    report: Report
    source: str
    received_at: datetime.datetime


def reports_ingest(
    *,
    contract: Contract,
    key: AgentKey | None,
    reports: Sequence[Any],
    received_at: datetime.datetime,
    source: str = ReportSource.AGENT,
) -> IngestOutcome:
    """Stores the reports and projects their incidents, in one transaction; the database errors it raises undo all.

    A report of which id and content are known is a duplicate. The same id with another content is kept beside the
    first as a conflict and changes no incident. An invalid report is not stored; its number stays missing, so the
    agent is asked for it again and at last it becomes unaccounted.
    """
    results: list[ReportResult | None] = [None] * len(reports)
    drafts = list(_drafts(reports, received_at, results, witnessed=source == ReportSource.AGENT))
    outcome = IngestOutcome()
    if drafts:
        with transaction.atomic(savepoint=False):
            outcome.contract = contracts_lock_with_terms([contract.pk])[contract.pk]
            _store(outcome, key, drafts, received_at, source, results)
    outcome.results = [result for result in results if result is not None]
    return outcome


def _drafts(
    reports: Sequence[Any], received_at: datetime.datetime, results: list[ReportResult | None], *, witnessed: bool
) -> Iterable[_Draft]:
    for index, value in enumerate(reports):
        try:
            if isinstance(value, Unreadable):
                raise Invalid(value.reason, value.path)
            report, body = report_take(value, received_at=received_at, witnessed=witnessed)
        except Invalid as refusal:
            named = value.get("id") if isinstance(value, dict) else None
            results[index] = ReportResult(
                id=named[:64] if isinstance(named, str) else None,
                status="invalid",
                reason=refusal.reason,
                path=refusal.path,
            )
        else:
            yield _Draft(index=index, report=report, body=body, sha256=hashlib.sha256(body).hexdigest())


def _store(
    outcome: IngestOutcome,
    key: AgentKey | None,
    drafts: list[_Draft],
    received_at: datetime.datetime,
    source: str,
    results: list[ReportResult | None],
) -> None:
    contract = outcome.contract
    assert contract is not None
    drafts = _free_of_silences(contract, drafts, results)
    stored = _stored(
        contract_id=contract.pk,
        report_ids={draft.report.id for draft in drafts},
        incident_ids={draft.report.incident_id for draft in drafts},
    )
    new = _compare(drafts, stored, results)
    rows_write(
        [
            RawReport(
                contract=contract,
                key=key,
                source=source,
                report_id=draft.report.id,
                content_sha256=draft.sha256,
                conflict=draft.conflict,
                agent_id=draft.report.agent_id,
                boot_id=draft.report.boot_id,
                seq=draft.report.seq,
                type=draft.report.type,
                incident_id=draft.report.incident_id,
                sent_at=draft.report.sent_at,
                received_at=received_at,
                body=draft.body.decode(),
            )
            for draft in new
        ]
    )
    first = [draft for draft in new if not draft.conflict]
    told: dict[uuid.UUID, list[_Told]] = defaultdict(list)
    for draft in first:
        told[draft.report.incident_id].append(_Told(draft.report, source, received_at))
    for _, _, conflict, incident_id, stored_source, stored_at, body in stored:
        if not conflict and incident_id in told:
            told[incident_id].append(_Told(REPORT.decode(body), stored_source, stored_at))
    silences = _project(outcome, contract, told, overwrite_runs=source == ReportSource.AGENT)
    boots = []
    if source == ReportSource.AGENT:
        boots = boots_upsert(contract=contract, news=_boot_news(new, received_at))
    incidents = list(outcome.incidents.values())
    outcome.incident_ids |= silences_explain(
        contract=contract, incidents=incidents, boots=boots, at=received_at, silences=silences
    )


@compiled
def _stored(
    *, contract_id: uuid.UUID, report_ids: Collection[uuid.UUID], incident_ids: Collection[uuid.UUID]
) -> QuerySet[RawReport, tuple[Any, ...]]:
    """What is kept under these ids, and what was told of these incidents before."""
    return RawReport.objects.filter(
        Q(report_id__in=report_ids) | Q(incident_id__in=incident_ids), contract=contract_id
    ).values_list("report_id", "content_sha256", "conflict", "incident_id", "source", "received_at", "body")


@compiled
def _known(*, contract_id: uuid.UUID, incident_ids: Collection[uuid.UUID]) -> QuerySet[Incident]:
    """These incidents, and the silences that are open."""
    return Incident.objects.filter(Q(public_id__in=incident_ids) | SILENCE_OPEN, contract=contract_id)


def _free_of_silences(contract: Contract, drafts: list[_Draft], results: list[ReportResult | None]) -> list[_Draft]:
    """Refuses reports under the id of a silence: they would overwrite it, where a failure told of only explains it."""
    derived = {draft.report.incident_id for draft in drafts if draft.report.incident_id.version == 5}
    if not derived:
        return drafts
    silences = Incident.objects.filter(contract=contract, public_id__in=derived, origin=Origin.SILENCE)
    taken = set(silences.values_list("public_id", flat=True))
    for draft in drafts:
        if draft.report.incident_id in taken:
            results[draft.index] = ReportResult(
                id=str(draft.report.id),
                status="invalid",
                reason="The service gave this id to a silence. Tell of the failure under an id of its own.",
                path="$.incident_id",
            )
    return [draft for draft in drafts if draft.report.incident_id not in taken]


def _compare(
    drafts: list[_Draft], stored: Iterable[tuple[Any, ...]], results: list[ReportResult | None]
) -> list[_Draft]:
    """Answers every draft and returns those to store."""
    contents: dict[uuid.UUID, dict[str, bool]] = defaultdict(dict)
    for report_id, sha256, conflict, *_ in stored:
        contents[report_id][sha256] = conflict
    new = []
    for draft in drafts:
        known = contents[draft.report.id]
        status: Status
        if draft.sha256 in known:
            status = "conflict" if known[draft.sha256] else "duplicate"
        else:
            draft.conflict = bool(known)
            status = "conflict" if draft.conflict else "created"
            known[draft.sha256] = draft.conflict
            new.append(draft)
        results[draft.index] = ReportResult(
            id=str(draft.report.id),
            status=status,
            reason="Another content with this id came first; both are kept." if status == "conflict" else None,
        )
    return new


def _origin(told: Iterable[_Told]) -> str:
    sources = {one.source for one in told}
    return next(source for source in ReportSource.values if source in sources)


def _project(
    outcome: IngestOutcome, contract: Contract, told: Mapping[uuid.UUID, list[_Told]], *, overwrite_runs: bool
) -> list[Incident] | None:
    """Projects the incidents told of. Returns the contract's open silences, read on the way, if any was."""
    if not told:
        return None
    ordered = {
        incident_id: sorted((one.report for one in reports), key=report_order) for incident_id, reports in told.items()
    }
    latest = sorted((reports[-1] for reports in ordered.values()), key=report_order)
    workloads = {report.workload.run_id: report.workload for report in latest}
    detections = {incident_id: detection_of(reports).workload for incident_id, reports in ordered.items()}
    for workload in detections.values():
        workloads.setdefault(workload.run_id, workload)
    runs = runs_upsert(contract=contract, workloads=workloads, overwrite=overwrite_runs)
    known = _known(contract_id=contract.pk, incident_ids=told.keys())
    before = {incident.public_id: incident for incident in known}
    silences = [row for row in before.values() if row.origin == Origin.SILENCE and row.state == IncidentState.OPEN]
    changed, incidents = [], []
    for incident_id, reports in ordered.items():
        incident = before.get(incident_id) or Incident(contract=contract, public_id=incident_id, revision=0)
        incidents.append(incident)
        if _facts_set(incident, project(reports), runs[detections[incident_id].run_id], _origin(told[incident_id])):
            incident.revision += 1
            changed.append(incident)
        received = [one.received_at for one in told[incident_id]]
        incident.first_received_at, incident.last_received_at = min(received), max(received)
    events = [incident.root_event_id for incident in incidents]
    moved = root_events_assign(contract=contract, incidents=incidents)
    moved += [one for one, event in zip(incidents, events, strict=True) if one.root_event_id != event]
    rows_write(incidents, unique=("contract", "public_id"), update=tuple(UPSERT_FIELDS))
    outcome.incident_ids = {incident.pk for incident in (*changed, *moved)}
    outcome.incidents = {incident.pk: incident for incident in incidents}
    outcome.created = {incident.pk for incident in incidents if incident.public_id not in before}
    return silences


def _facts_set(incident: Incident, facts: Mapping[str, Any], run: Run, origin: str) -> bool:
    """Writes the facts into the row and says whether any was new."""
    if incident.revision and incident.run_id == run.pk and incident.origin == origin:
        changed = any(getattr(incident, name) != facts[name] for name in FACT_FIELDS)
    else:
        changed = True
    for name in FACT_FIELDS:
        setattr(incident, name, facts[name])
    incident.run = run
    incident.origin = origin
    return changed


def _boot_news(drafts: Iterable[_Draft], received_at: datetime.datetime) -> Iterable[BootNews]:
    news: dict[tuple[str, uuid.UUID], BootNews] = {}
    for draft in drafts:
        report = draft.report
        # A spool that is flushed late says nothing about now: the boot was alive when it wrote.
        seen_at = min(report.sent_at, received_at)
        item = news.setdefault(
            (report.agent_id, report.boot_id),
            BootNews(report.agent_id, report.boot_id, report.workload.run_id, report.seq, seen_at),
        )
        item.seq = max(item.seq, report.seq)
        item.seen_at = max(item.seen_at, seen_at)
    return news.values()
