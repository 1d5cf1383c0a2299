"""Analytics of many incidents, computed by a task, once for the same data.

An answer is found by a hash of the question and of what it rests on. A late report changes the hash, so what was
computed before it is never taken for the present.
"""

import datetime
import hashlib
import json
import logging
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from django.conf import settings
from django.db import transaction
from django.db.models import Count, F, OuterRef, Subquery, Sum
from django.utils import timezone
from kombu.exceptions import OperationalError

from yoco.contracts.models import ContractYear, GuaranteeTerms
from yoco.guarantee.analytics.codec import decoded, encoded, tables_restored
from yoco.guarantee.analytics.exposure import runs_watched
from yoco.guarantee.analytics.fleets import Fleet, fleet_of
from yoco.guarantee.analytics.scope import Step, fleet_scope
from yoco.guarantee.analytics.selectors import Analytics, Given, year_analytics
from yoco.guarantee.models import AnalyticsJob, JobState, Placement
from yoco.incidents.models import StepHour

log = logging.getLogger(__name__)
VERSION = 1  # of what is computed and how it is kept; a change makes every answer a new one
LOST_AFTER = datetime.timedelta(minutes=10)
HOUR = datetime.timedelta(hours=1)
ATTEMPTS = 3  # while reports keep arriving


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: a topic of one year, or `fleet` of many, as of a full hour or the end of the last year."""

    topic: str
    years: tuple[str, ...]
    as_of: str
    spare_nodes: int | None = None
    write_ms: int | None = None

    @property
    def at(self) -> datetime.datetime:
        return datetime.datetime.fromisoformat(self.as_of)


def question_of(
    *, topic: str, years: Sequence[ContractYear], given: Given | None = None, now: datetime.datetime
) -> Question:
    """The question at the last full hour, so that heartbeats do not make another one every few seconds."""
    hour = now.astimezone(datetime.UTC).replace(minute=0, second=0, microsecond=0)
    as_of = min(hour, max(year.ends_at for year in years))
    keys = tuple(sorted(str(year.pk) for year in years))
    given = given or Given()
    return Question(topic, keys, as_of.isoformat(), given.spare_nodes, given.write_ms)


def year_found(
    *, year: ContractYear, topic: str, given: Given, incidents: int, now: datetime.datetime
) -> Analytics | AnalyticsJob:
    """A topic of a year: at once, or of so many `incidents` what a job has found, or the job that is at it."""
    if incidents <= settings.ANALYTICS_AT_ONCE:
        return year_analytics(year=year, topics=(topic,), given=given, now=now)
    job = job_ask(question=question_of(topic=topic, years=[year], given=given, now=now), years=[year])
    answer = answer_of(job, years=[year])
    return answer if isinstance(answer, Analytics) else job


def fleet_found(*, years: Sequence[ContractYear], incidents: int, now: datetime.datetime) -> Fleet | AnalyticsJob:
    """A fleet: at once, or of so many `incidents` what a job has found, or the job that is at it."""
    if incidents <= settings.ANALYTICS_AT_ONCE:
        return fleet_of(years=years, now=now)
    job = job_ask(question=question_of(topic="fleet", years=years, now=now), years=years)
    answer = answer_of(job, years=years)
    return answer if isinstance(answer, Fleet) else job


def job_ask(*, question: Question, years: Sequence[ContractYear]) -> AnalyticsJob:
    """The job that answers this question on the present data; a task is started where there is none.

    Without a broker the task runs at once, within this call.
    """
    job, new = AnalyticsJob.objects.get_or_create(
        inputs_sha256=_inputs_sha256(question, years), defaults={"question": asdict(question)}
    )
    failed = AnalyticsJob.objects.filter(
        pk=job.pk, state=JobState.FAILED, alive_at__lt=timezone.now() - datetime.timedelta(minutes=1)
    )
    if new or failed.update(state=JobState.WAITING, alive_at=timezone.now()):
        _start(job.pk)
        job.refresh_from_db()
    return job


def answer_of(job: AnalyticsJob, *, years: Sequence[ContractYear]) -> Analytics | Fleet | None:
    """What a job found; None while it has not."""
    if job.state != JobState.DONE or job.result is None:
        return None
    if job.question["topic"] == "fleet":
        return decoded(bytes(job.result), Fleet, years=years)
    found = decoded(bytes(job.result), Analytics, years=years)
    found.tables = tables_restored(found.tables)
    return found


def job_run(*, job_id: str) -> None:
    """Computes and keeps the answer; nothing if another task is at it or has been.

    What was computed while the data changed is thrown away: it would be neither of before nor of after. After three
    times the job is dropped, and whoever asks next asks about the present.
    """
    claimed = AnalyticsJob.objects.filter(pk=job_id, state=JobState.WAITING)
    if claimed.update(state=JobState.RUNNING, alive_at=timezone.now(), steps_done=0) != 1:
        return
    row = AnalyticsJob.objects.get(pk=job_id)
    mine = AnalyticsJob.objects.filter(pk=job_id, state=JobState.RUNNING)
    question = Question(**(row.question | {"years": tuple(row.question["years"])}))

    def step(done: int, of: int) -> None:
        mine.update(steps_done=done, steps=of, alive_at=timezone.now())

    try:
        years = list(ContractYear.objects.filter(pk__in=question.years).select_related("contract__organisation"))
        for _attempt in range(ATTEMPTS):
            before = _inputs_sha256(question, years)
            result = encoded(_computed(question, years, step))
            if _inputs_sha256(question, years) == before:
                _keep(row, before, result)
                return
        mine.delete()
    except Exception:
        log.exception("analytics job %s failed", job_id)
        mine.update(state=JobState.FAILED, alive_at=timezone.now())


def _keep(row: AnalyticsJob, sha256: str, result: bytes) -> None:
    """Stores the answer under the hash of the data that it rests on."""
    with transaction.atomic():
        running = AnalyticsJob.objects.select_for_update().filter(pk=row.pk, state=JobState.RUNNING)
        if not running.exists():
            return
        if sha256 != row.inputs_sha256 and AnalyticsJob.objects.filter(inputs_sha256=sha256).exists():
            running.delete()  # who asked about the present has a job of their own
            return
        running.update(
            state=JobState.DONE, result=result, inputs_sha256=sha256, steps_done=F("steps"), alive_at=timezone.now()
        )


def _computed(question: Question, years: Sequence[ContractYear], step: Step) -> Analytics | Fleet:
    if question.topic == "fleet":
        return fleet_of(years=years, now=question.at, step=step)
    given = Given(question.spare_nodes, question.write_ms)
    return year_analytics(year=years[0], topics=(question.topic,), given=given, now=question.at, step=step)


def _inputs_sha256(question: Question, years: Sequence[ContractYear]) -> str:
    """A hash of the question and of all that its answer is made of.

    Placings are written under their contract's lock with the time of that moment, so any change of one moves the
    latest time of its year, or the number where it leaves the year. Four queries, none of which reads the placings
    themselves: their indexes answer.
    """
    scope = fleet_scope(years=years, now=question.at)
    contracts = {year.contract_id for year in years}
    placings = Placement.objects.filter(year=OuterRef("pk"))
    versions = GuaranteeTerms.objects.filter(contract=OuterRef("contract"))
    every = ContractYear.objects.filter(contract__in=contracts).order_by("pk")
    placed = list(
        every.annotate(
            last=Subquery(placings.order_by("-placed_at").values("placed_at")[:1]),
            incidents=Subquery(placings.values("year").annotate(n=Count("lead")).values("n")),
            versions=Subquery(versions.values("contract").annotate(n=Count("pk")).values("n")),
        ).values_list("pk", "last", "incidents", "versions")
    )
    steps = StepHour.objects.filter(
        run__contract__in=contracts, hour__gte=min(year.starts_at for year in years), hour__lt=scope.until
    ).aggregate(n=Count("pk"), steps=Sum("steps"), took=Sum("took_ms"))
    named = ("pk", "fees_minor", "guaranteed_from", "guaranteed_until", "starts_at", "ends_at")
    agreed = [
        [str(getattr(year, name)) for name in named]
        + [year.contract.currency, str(year.contract.price_per_gpu_hour), year.contract.time_zone]
        for year in sorted(years, key=lambda year: str(year.pk))
    ]
    runs = [(str(run.id), run.name, run.gpus, run.gpus_per_node, run.spans) for run in runs_watched(scope)]
    facts = [VERSION, asdict(question), placed, steps, agreed, runs]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _start(job_id: uuid.UUID) -> None:
    def send() -> None:
        from yoco.guarantee.tasks import analytics_compute  # the task calls job_run

        try:
            analytics_compute.delay(str(job_id))
        except OperationalError:
            log.warning("no broker: job %s waits for the next sweep", job_id)

    transaction.on_commit(send)


def jobs_sweep(*, as_of: datetime.datetime) -> int:
    """Starts again what waits or runs without going on, and returns how many; drops answers of an hour that is over."""
    AnalyticsJob.objects.filter(pk__in=_outdated(as_of)).delete()
    lost = AnalyticsJob.objects.filter(state__in=[JobState.WAITING, JobState.RUNNING], alive_at__lt=as_of - LOST_AFTER)
    started = 0
    for job_id in list(lost.values_list("pk", flat=True)):
        again = AnalyticsJob.objects.filter(pk=job_id, alive_at__lt=as_of - LOST_AFTER)
        if again.update(state=JobState.WAITING, alive_at=timezone.now()):
            _start(job_id)
            started += 1
    return started


def _outdated(as_of: datetime.datetime) -> list[uuid.UUID]:
    """Answers as of an hour that is over: nobody asks as of it any more. An ended year's stay the same."""
    ended = AnalyticsJob.objects.filter(state__in=[JobState.DONE, JobState.FAILED], alive_at__lt=as_of - HOUR)
    return [
        pk
        for pk, alive_at, asked in ended.values_list("pk", "alive_at", "question__as_of")
        if alive_at - datetime.datetime.fromisoformat(asked) < HOUR
    ]
