"""Runs, and the boots of the agents in them."""

import datetime
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from django.db.models import F, Max, Min, Q, QuerySet, Window
from django.db.models.functions import Coalesce, Lead

from yoco.contracts.models import Contract
from yoco.core.bulk import rows_write
from yoco.core.compiled import compiled
from yoco.incidents.models import AgentBoot, Incident, RawReport, Run
from yoco.incidents.payload import Workload

RUN_FIELDS = ["name", "framework", "agent_version", "strategy", "gpus", "gpu_model", "gpus_per_node"]
MAX_RANGES = 100


@compiled
def _runs(*, contract_id: uuid.UUID, run_ids: Collection[str]) -> QuerySet[Run]:
    return Run.objects.filter(contract=contract_id, run_id__in=run_ids)


@compiled
def _boots(*, contract_id: uuid.UUID, boot_ids: Collection[uuid.UUID]) -> QuerySet[AgentBoot]:
    return AgentBoot.objects.filter(contract=contract_id, boot_id__in=boot_ids)


def runs_upsert(*, contract: Contract, workloads: Mapping[str, Workload], overwrite: bool = True) -> dict[str, Run]:
    """The runs with these names, made where missing. What a workload says replaces what was known if `overwrite`."""
    runs = {run.run_id: run for run in _runs(contract_id=contract.pk, run_ids=workloads.keys())}
    changed = []
    for run_id, workload in workloads.items():
        said = {name: value for name in RUN_FIELDS if (value := getattr(workload, name)) is not None}
        if run_id not in runs:
            changed.append(Run(contract=contract, run_id=run_id, **said))
        elif overwrite and any(getattr(runs[run_id], name) != value for name, value in said.items()):
            for name, value in said.items():
                setattr(runs[run_id], name, value)
            changed.append(runs[run_id])
    if changed:
        Run.objects.bulk_create(
            changed, update_conflicts=True, unique_fields=["contract", "run_id"], update_fields=RUN_FIELDS
        )
        runs.update({run.run_id: run for run in changed})
    return runs


@dataclass(frozen=True, slots=True)
class Advance:
    """Steps that a run went on between the first words of two of them."""

    since: datetime.datetime
    until: datetime.datetime
    steps: int


@dataclass(slots=True)
class BootNews:
    """What reports or a heartbeat say of one boot. Only a heartbeat knows a `step`.

    `went_on` is set where the boot had told of the end of its run before, `advance` where it tells of a later step.
    """

    agent_id: str
    boot_id: uuid.UUID
    run_id: str
    seq: int
    seen_at: datetime.datetime
    heard_at: datetime.datetime | None = None
    step: int | None = None
    ended_at: datetime.datetime | None = None
    went_on: bool = False
    advance: Advance | None = None


def boots_upsert(*, contract: Contract, news: Iterable[BootNews]) -> list[AgentBoot]:
    """Carries each boot's highest number and last sign of life forward; never back.

    A boot tells of one run, the first that it named: what it says of another is no sign of life of that one.
    """
    by_boot = {(item.agent_id, item.boot_id): item for item in news}
    if not by_boot:
        return []
    known = {
        (boot.agent_id, boot.boot_id): boot
        for boot in _boots(contract_id=contract.pk, boot_ids={boot_id for _, boot_id in by_boot})
    }
    boots = []
    for key, item in by_boot.items():
        boot = known.get(key)
        if boot is None:
            boot = AgentBoot(
                contract=contract,
                agent_id=item.agent_id,
                boot_id=item.boot_id,
                run_id=item.run_id,
                first_seen_at=item.seen_at,
                last_seen_at=item.seen_at,
            )
        boots.append(boot)
        boot.last_seq = max(boot.last_seq, item.seq)
        boot.heard_at = max((at for at in (boot.heard_at, item.heard_at) if at is not None), default=None)
        if boot.run_id != item.run_id:
            continue
        if item.step is not None and (boot.step_at is None or boot.step_at <= item.seen_at):
            if boot.last_step != item.step:
                if boot.last_step is not None and boot.step_since is not None and item.step > boot.last_step:
                    item.advance = Advance(boot.step_since, item.seen_at, item.step - boot.last_step)
                boot.step_since = item.seen_at
            boot.last_step, boot.step_at = item.step, item.seen_at
            if item.ended_at is None and boot.run_ended_at is not None and boot.run_ended_at < item.seen_at:
                boot.run_ended_at, item.went_on = None, True
        boot.last_seen_at = max(boot.last_seen_at, item.seen_at)
        boot.run_ended_at = boot.run_ended_at or item.ended_at
    rows_write(
        boots,
        unique=("contract", "agent_id", "boot_id"),
        update=("run_id", "last_seq", "last_step", "step_at", "step_since", "last_seen_at", "heard_at", "run_ended_at"),
    )
    return boots


def run_last_step(*, contract: Contract, run_id: str, boot_id: uuid.UUID, at: datetime.datetime) -> int | None:
    """The step at which a run was last known to stand at an instant, or this boot ever; None if nobody told one.

    Of a run without any heartbeat, its latest incident tells.
    """
    told = AgentBoot.objects.filter(Q(step_at__lte=at) | Q(boot_id=boot_id), contract=contract, run_id=run_id)
    step = told.exclude(step_at=None).order_by("-step_at", "-pk").values_list("last_step", flat=True).first()
    if step is not None:
        return step
    incidents = Incident.objects.filter(contract=contract, run__run_id=run_id, started_at__lte=at)
    after = Coalesce("first_step_after", "last_committed_step")
    known = incidents.annotate(step=after).exclude(step=None).order_by("-started_at", "-pk")
    return known.values_list("step", flat=True).first()


def boot_missing(boot: AgentBoot, *, after: int = 0) -> list[list[int]]:
    """The first hundred ranges `[first, last]` above `after` of sequence numbers of a boot that never arrived."""
    numbers = RawReport.objects.filter(
        contract_id=boot.contract_id, agent_id=boot.agent_id, boot_id=boot.boot_id, seq__gt=after
    )
    ends = numbers.aggregate(first=Min("seq"), last=Max("seq"))
    if ends["first"] is None:
        return [[after + 1, boot.last_seq]] if boot.last_seq > after else []
    ranges = [[after + 1, ends["first"] - 1]] if ends["first"] > after + 1 else []
    ranges += [
        [seq + 1, following - 1]
        for seq, following in numbers.annotate(following=Window(Lead("seq"), order_by=F("seq").asc()))
        .filter(following__gt=F("seq") + 1)
        .order_by("seq")
        .values_list("seq", "following")[:MAX_RANGES]
    ]
    if ends["last"] < boot.last_seq:
        ranges.append([ends["last"] + 1, boot.last_seq])
    return ranges[:MAX_RANGES]
