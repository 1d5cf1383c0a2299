"""What was never told: runs that fall silent and report numbers that never arrive become *unaccounted* incidents.

An incident of origin `silence` is open while nobody has accounted for it. A true report, or the agent's own word that
it has nothing more to tell, ends it (`state` resolved, `explained_by`), so that nothing counts twice.
"""

import datetime
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

from django.db import transaction
from django.db.models import F, Q, QuerySet

from yoco.contracts.locks import contracts_lock
from yoco.contracts.models import Contract, GuaranteeTerms
from yoco.incidents.models import AgentBoot, Incident, IncidentState, Kind, Origin, RawReport, Run, Signal
from yoco.incidents.services.root_events import root_events_assign
from yoco.incidents.services.runs import boot_missing

# A failure begins a little before the last sign of life when the agent's last heartbeat overtook its detection.
SLACK = datetime.timedelta(minutes=5)


def silences_explain(
    *, contract: Contract, incidents: Collection[Incident], boots: Collection[AgentBoot], at: datetime.datetime
) -> set[int]:
    """Ends the silences that these incidents or these boots account for, and returns their ids.

    One query while the contract has no open silence.
    """
    if not incidents and not boots:
        return set()
    explained = []
    for silence in Incident.objects.filter(contract=contract, origin=Origin.SILENCE, state=IncidentState.OPEN):
        if silence.trigger_detail["silence"] == "gap":
            told, incident = _gap_told(silence, boots)
        else:
            incident = next((one for one in incidents if _covers(one, silence)), None)
            told = incident is not None or _heard_again(silence, boots)
        if told:
            silence.state = IncidentState.RESOLVED
            silence.explained_by = incident
            silence.revision += 1
            silence.last_received_at = at
            explained.append(silence)
    if explained:
        Incident.objects.bulk_update(explained, ["state", "explained_by", "revision", "last_received_at"])
    return {silence.pk for silence in explained}


def _covers(incident: Incident, silence: Incident) -> bool:
    """True when `incident` is what kept the run silent."""
    if incident.run_id != silence.run_id or silence.detected_at is None:
        return False
    begins_in_time = silence.started_at - SLACK <= incident.started_at <= silence.detected_at
    spans = incident.started_at < silence.started_at <= (incident.resumed_at or incident.started_at)
    return begins_in_time or spans


def _heard_again(silence: Incident, boots: Iterable[AgentBoot]) -> bool:
    """True when every silent boot has spoken since, or ended, and nothing that it issued is missing."""
    silent = set(silence.trigger_detail["boots"])
    if silent.isdisjoint(boot.pk for boot in boots):
        return False
    return all(
        (boot.run_ended_at is not None or boot.last_seen_at > silence.started_at) and not boot_missing(boot)
        for boot in AgentBoot.objects.filter(pk__in=silent)
    )


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

    Returns the incidents that are new or changed. Safe to run twice at once, and after days of downtime.
    """
    contracts_lock([contract.pk])
    window = _window(contract, as_of)
    boots = AgentBoot.objects.filter(contract=contract)
    silences = _runs_silent(contract, boots.filter(_waiting(as_of), last_seen_at__lte=as_of - window), as_of)
    silences += _gaps_unfilled(contract, boots.filter(last_seq__gt=F("accounted_seq")), window, as_of)
    return _silences_save(contract, silences)


def _window(contract: Contract, as_of: datetime.datetime) -> datetime.timedelta:
    terms = GuaranteeTerms.objects.filter(contract=contract, effective_on__lte=as_of.date()).last() or GuaranteeTerms()
    return datetime.timedelta(minutes=terms.silence_window_minutes)


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


def _runs_silent(contract: Contract, found: Iterable[AgentBoot], as_of: datetime.datetime) -> list[Incident]:
    boots = list(found)
    if not boots:
        return []
    runs = _runs(contract, boots)
    by_run: dict[str, list[AgentBoot]] = defaultdict(list)
    for boot in boots:
        by_run[boot.run_id].append(boot)
        boot.silence_noted_at = boot.last_seen_at
    AgentBoot.objects.bulk_update(boots, ["silence_noted_at"])
    silences = []
    for run_id, silent in by_run.items():
        run = runs[run_id]
        started_at = min(boot.last_seen_at for boot in silent)
        known = list(
            Incident.objects.filter(run=run, started_at__lte=as_of).filter(
                Q(started_at__gte=started_at - SLACK) | Q(resumed_at__gte=started_at) | Q(state=IncidentState.OPEN)
            )
        )
        silence = next((one for one in known if one.origin == Origin.SILENCE and _is_run_silence(one)), None)
        if any(one.origin != Origin.SILENCE for one in known):
            # What stopped the run has been told, or is still open and counts as such.
            continue
        if silence is None:
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
        silence.trigger_detail["boots"] = sorted({*silence.trigger_detail["boots"], *(boot.pk for boot in silent)})
        silence.trigger_detail["last_step"] = max((boot.last_step or 0 for boot in silent), default=0)
        silences.append(silence)
    return silences


def _is_run_silence(incident: Incident) -> bool:
    return incident.state == IncidentState.OPEN and incident.trigger_detail.get("silence") == "run"


def _gaps_unfilled(
    contract: Contract, found: Iterable[AgentBoot], window: datetime.timedelta, as_of: datetime.datetime
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
        elif as_of - boot.gap_since >= window:
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
