"""What was never told: runs that fall silent and report numbers that never arrive become *unaccounted* incidents.

An incident of origin `silence` is open while nobody has accounted for it. A true report, or the agent's own word that
it has nothing more to tell, ends it (`state` resolved, `explained_by`), so that nothing counts twice.
"""

import datetime
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from django.db import transaction
from django.db.models import F, Max, Q, QuerySet

from yoco.contracts.locks import contracts_lock
from yoco.contracts.models import Contract
from yoco.contracts.selectors import YearlyTerms, yearly_terms
from yoco.incidents.models import AgentBoot, Incident, IncidentState, Kind, Origin, RawReport, Run, Signal
from yoco.incidents.services.root_events import root_events_assign
from yoco.incidents.services.runs import boot_missing
from yoco.incidents.trigger import kind_evidenced

SILENCE_OPEN = Q(origin=Origin.SILENCE, state=IncidentState.OPEN)
# A failure begins a little before the last sign of life when the agent's last heartbeat overtook its detection.
SLACK = datetime.timedelta(minutes=5)


def silences_explain(
    *,
    contract: Contract,
    incidents: Collection[Incident],
    boots: Collection[AgentBoot],
    at: datetime.datetime,
    silences: Collection[Incident] | None = None,
) -> set[int]:
    """Ends the silences that these incidents or these boots account for, and returns their ids.

    `silences` are the open ones of the contract where they are known; to find them is one query.
    """
    if not incidents and not boots:
        return set()
    if silences is None:
        silences = Incident.objects.filter(SILENCE_OPEN, contract=contract)
    explained, reopened = [], set()
    for silence in silences:
        if silence.trigger_detail["silence"] == "gap":
            told, incident = _gap_told(silence, boots)
        else:
            incident = _failure_of(silence, incidents)
            told = incident is not None or _heard_again(silence, boots)
            # Whether the run lives on after what was told, the sweep looks at anew.
            reopened |= set(silence.trigger_detail["boots"]) if incident is not None else set()
        if told:
            silence.state = IncidentState.RESOLVED
            silence.explained_by = incident
            silence.revision += 1
            silence.last_received_at = at
            explained.append(silence)
    if explained:
        Incident.objects.bulk_update(explained, ["state", "explained_by", "revision", "last_received_at"])
    if reopened:
        AgentBoot.objects.filter(pk__in=reopened).update(silence_noted_at=None)
    return {silence.pk for silence in explained}


def _failure_of(silence: Incident, incidents: Iterable[Incident]) -> Incident | None:
    mine = [incident for incident in incidents if incident.run_id == silence.run_id]
    told_until = _told_until(mine)
    step = silence.trigger_detail.get("last_step")
    return next(
        (
            incident
            for incident in mine
            if silence.detected_at is not None
            and incident.started_at <= silence.detected_at
            and covers(incident, since=silence.started_at, told_until=told_until.get(incident.public_id), step=step)
        ),
        None,
    )


def covers(
    incident: Incident,
    *,
    since: datetime.datetime,
    told_until: datetime.datetime | None,
    step: int | None = None,
    step_since: datetime.datetime | None = None,
) -> bool:
    """True when this incident of the run is a failure that kept it silent `since` then.

    What was planned or to be prevented ends no run. A failure over before the silence began did not cause it. One not
    over covers it if it began then. If it began long before, then only if the run has not gone on meanwhile: it stands
    at the failure's step, or has told the same `step` since; or that failure is the last thing told.
    """
    kind = kind_evidenced(incident.kind, signal=incident.signal, xid=incident.xid)  # type: ignore[arg-type]
    if incident.origin == Origin.SILENCE or kind != "unplanned":
        return False
    if incident.resumed_at is not None:
        return incident.resumed_at >= since
    stood = incident.last_committed_step
    return (
        incident.started_at >= since - SLACK
        or (stood is not None and step is not None and step <= stood + 1)
        or (step_since is not None and step_since <= incident.started_at + SLACK)
        or (told_until is not None and told_until >= since - SLACK)
    )


def _told_until(incidents: Collection[Incident]) -> dict[uuid.UUID, datetime.datetime]:
    """When the latest report of each of these incidents of one contract was written."""
    if not incidents:
        return {}
    contract_id = next(iter(incidents)).contract_id
    rows = RawReport.objects.filter(
        contract_id=contract_id, incident_id__in=[incident.public_id for incident in incidents], conflict=False
    )
    return dict(rows.values_list("incident_id").annotate(latest=Max("sent_at")).order_by())


def _heard_again(silence: Incident, boots: Iterable[AgentBoot]) -> bool:
    """True when every silent boot has said since that the run stands where it stood, or further, and all its numbers
    have arrived. A run that goes on from an earlier step was lost; its failure has to be told."""
    silent = set(silence.trigger_detail["boots"])
    if silent.isdisjoint(boot.pk for boot in boots):
        return False
    known = silence.trigger_detail.get("last_step") or 0
    for boot in AgentBoot.objects.filter(pk__in=silent):
        # Of a run that never told a step, any sign of life will do.
        heard_at = boot.step_at if known or boot.step_at else boot.last_seen_at
        stands = heard_at is not None and heard_at > silence.started_at and (boot.last_step or 0) >= known
        if not stands or boot_missing(boot):
            return False
    return True


def _gap_told(silence: Incident, boots: Iterable[AgentBoot]) -> tuple[bool, Incident | None]:
    """Whether the gap has filled, and an incident that the late reports tell of."""
    detail = silence.trigger_detail
    boot = next((boot for boot in boots if boot.pk == detail["boots"][0]), None)
    if boot is None:
        return False, None
    late = RawReport.objects.filter(
        contract_id=boot.contract_id,
        agent_id=boot.agent_id,
        boot_id=boot.boot_id,
        seq__range=(detail["first"], detail["last"]),
    )
    if late.values("seq").distinct().count() <= detail["last"] - detail["first"]:
        return False, None
    return True, Incident.objects.filter(contract_id=boot.contract_id, public_id__in=late.values("incident_id")).first()


def silence_candidates(*, as_of: datetime.datetime) -> QuerySet[Contract]:
    """The contracts in which a boot has not been heard of lately, or a number has not arrived."""
    return Contract.objects.filter(
        pk__in=AgentBoot.objects.filter(_waiting(as_of) | Q(last_seq__gt=F("accounted_seq"))).values("contract_id")
    ).order_by("pk")


def _waiting(as_of: datetime.datetime) -> Q:
    noted = Q(silence_noted_at__isnull=False, silence_noted_at__gte=F("last_seen_at"))
    return Q(run_ended_at=None, last_seen_at__lt=as_of) & ~noted


@transaction.atomic
def silence_sweep(*, contract: Contract, as_of: datetime.datetime) -> set[int]:
    """Opens an unaccounted incident for every run silent and every gap unfilled beyond the terms' window.

    The window is that of the contract year in which the silence or the gap began. Returns the incidents that are new or
    changed. Safe to run twice at once, and after days of downtime.
    """
    contracts_lock([contract.pk])
    terms = yearly_terms(contract=contract)
    boots = AgentBoot.objects.filter(contract=contract)
    silences = _runs_silent(contract, boots.filter(_waiting(as_of)), terms, as_of)
    silences += _gaps_unfilled(contract, boots.filter(last_seq__gt=F("accounted_seq")), terms, as_of)
    return _silences_save(contract, silences)


def _due(since: datetime.datetime, terms: YearlyTerms) -> datetime.datetime:
    """When a silence or a gap becomes unaccounted."""
    return since + datetime.timedelta(minutes=terms.at(since).silence_window_minutes)


def _silences_save(contract: Contract, silences: list[Incident]) -> set[int]:
    moved = root_events_assign(contract=contract, incidents=silences)
    Incident.objects.bulk_create(
        silences,
        update_conflicts=True,
        unique_fields=["contract", "public_id"],
        update_fields=["trigger_detail", "revision", "root_event"],
    )
    return {incident.pk for incident in (*silences, *moved)}


def _silence(
    contract: Contract, run: Run, *, name: str, started_at: datetime.datetime, at: datetime.datetime, detail: Any
) -> Incident:
    return Incident(
        contract=contract,
        # The same silence always has the same id, whoever finds it.
        public_id=uuid.uuid5(run.pk, name),
        run=run,
        origin=Origin.SILENCE,
        kind=Kind.UNPLANNED,
        signal=Signal.HEARTBEAT_LOST,
        trigger_detail=detail,
        gpus=run.gpus or 0,
        gpus_per_node=run.gpus_per_node,
        strategy=run.strategy,
        started_at=started_at,
        detected_at=at,
        first_received_at=at,
        last_received_at=at,
    )


def _runs(contract: Contract, boots: Iterable[AgentBoot]) -> dict[str, Run]:
    wanted = {boot.run_id for boot in boots}
    Run.objects.bulk_create([Run(contract=contract, run_id=run_id) for run_id in wanted], ignore_conflicts=True)
    return {run.run_id: run for run in Run.objects.filter(contract=contract, run_id__in=wanted)}


def _runs_silent(
    contract: Contract, found: Iterable[AgentBoot], terms: YearlyTerms, as_of: datetime.datetime
) -> list[Incident]:
    boots = [boot for boot in found if _due(_last_life(boot), terms) <= as_of]
    if not boots:
        return []
    runs = _runs(contract, boots)
    known = list(
        Incident.objects.filter(run__in=runs.values(), started_at__lte=as_of).filter(
            Q(started_at__gte=min(boot.last_seen_at for boot in boots) - SLACK)
            | Q(resumed_at__gte=min(boot.last_seen_at for boot in boots))
            | Q(resumed_at=None)
        )
    )
    told_until = _told_until([incident for incident in known if incident.resumed_at is None])
    lives = dict(
        AgentBoot.objects.filter(contract=contract, run_id__in=runs)
        .values_list("run_id")
        .annotate(latest=Max("last_seen_at"))
        .order_by()
    )
    silent: dict[str, list[tuple[datetime.datetime, AgentBoot]]] = defaultdict(list)
    settled = []
    for boot in boots:
        mine = [incident for incident in known if incident.run_id == runs[boot.run_id].pk]
        since, still_open = _silent_since(boot, mine, terms, told_until, lives[boot.run_id])
        if since is not None and _due(since, terms) <= as_of:
            silent[boot.run_id].append((since, boot))
        # What is still open may end in any way, and what has resumed has to be heard of: look again.
        elif since is None and not still_open:
            settled.append(boot)
    silences = [_silence_of(contract, runs[run_id], known, those, as_of) for run_id, those in silent.items()]
    settled += [boot for those in silent.values() for _, boot in those]
    for boot in settled:
        boot.silence_noted_at = boot.last_seen_at
    AgentBoot.objects.bulk_update(settled, ["silence_noted_at"])
    return silences


def _last_life(boot: AgentBoot) -> datetime.datetime:
    """A slow clock is no silence: it counts when the boot was heard. Its own clock says when what it tells of was."""
    return max(boot.last_seen_at, boot.heard_at or boot.last_seen_at)


def _silent_since(
    boot: AgentBoot,
    incidents: Iterable[Incident],
    terms: YearlyTerms,
    told_until: Mapping[uuid.UUID, datetime.datetime],
    alive_at: datetime.datetime,
) -> tuple[datetime.datetime | None, bool]:
    """Since when nobody accounts for this boot's silence, None if somebody does; and whether what covers it is open.

    A failure that was told carries the moment forward to when training went on after it; from there on somebody has to
    be heard of again.
    """
    since = boot.last_seen_at
    for incident in sorted(incidents, key=lambda one: (one.started_at, one.pk)):
        told = told_until.get(incident.public_id)
        if incident.started_at > _due(since, terms) or not covers(
            incident, since=since, told_until=told, step=boot.last_step, step_since=boot.step_since
        ):
            continue
        if incident.resumed_at is None:
            return None, incident.state == IncidentState.OPEN
        since = max(since, incident.resumed_at)
    if boot.last_seen_at < since <= alive_at:
        return None, False
    return since, False


def _silence_of(
    contract: Contract,
    run: Run,
    known: Iterable[Incident],
    silent: list[tuple[datetime.datetime, AgentBoot]],
    as_of: datetime.datetime,
) -> Incident:
    silence = next((one for one in known if one.run_id == run.pk and _is_run_silence(one)), None)
    if silence is None:
        started_at = min(since for since, _ in silent)
        silence = _silence(
            contract,
            run,
            name=f"silence:{started_at.isoformat()}",
            started_at=started_at,
            at=as_of,
            detail={"silence": "run", "boots": []},
        )
    else:
        silence.revision += 1
    detail = silence.trigger_detail
    detail["boots"] = sorted({*detail["boots"], *(boot.pk for _, boot in silent)})
    detail["last_step"] = max([detail.get("last_step") or 0, *(boot.last_step or 0 for _, boot in silent)])
    return silence


def _is_run_silence(incident: Incident) -> bool:
    unaccounted = incident.origin == Origin.SILENCE and incident.state == IncidentState.OPEN
    return unaccounted and incident.trigger_detail.get("silence") == "run"


def _gaps_unfilled(
    contract: Contract, found: Iterable[AgentBoot], terms: YearlyTerms, as_of: datetime.datetime
) -> list[Incident]:
    boots = list(found)
    if not boots:
        return []
    silences = []
    runs = _runs(contract, boots)
    for boot in boots:
        missing = boot_missing(boot, after=boot.accounted_seq)
        if not missing:
            boot.accounted_seq, boot.gap_since, boot.gap_to = boot.last_seq, None, None
        elif boot.gap_since is None or boot.gap_to is None:
            boot.gap_since, boot.gap_to = as_of, missing[-1][1]
        elif _due(boot.gap_since, terms) <= as_of:
            old = [[first, min(last, boot.gap_to)] for first, last in missing if first <= boot.gap_to]
            silences += [_gap(contract, runs[boot.run_id], boot, first, last, as_of) for first, last in old]
            boot.accounted_seq, boot.gap_since, boot.gap_to = boot.gap_to, None, None
    AgentBoot.objects.bulk_update(boots, ["accounted_seq", "gap_since", "gap_to"])
    return silences


def _gap(contract: Contract, run: Run, boot: AgentBoot, first: int, last: int, as_of: datetime.datetime) -> Incident:
    before = (
        RawReport.objects.filter(contract=contract, agent_id=boot.agent_id, boot_id=boot.boot_id, seq__lt=first)
        .order_by("-seq")
        .values_list("sent_at", flat=True)
        .first()
    )
    return _silence(
        contract,
        run,
        name=f"gap:{boot.boot_id}:{first}",
        started_at=before or boot.first_seen_at,
        at=as_of,
        detail={"silence": "gap", "boots": [boot.pk], "first": first, "last": last, "agent_id": boot.agent_id},
    )
