"""What is deleted in time, and that no deletion moves a figure that is not frozen yet."""

import dataclasses
import datetime
import uuid
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
import time_machine
from allauth.usersessions.models import UserSession
from django.apps import apps
from django.conf import settings
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import Client
from django.urls import reverse

from tests.ingest.reports import heartbeat, report
from tests.people import PASSWORD, World, build_world
from yoco.accounts.invitations import invitation_create
from yoco.accounts.models import Invitation, Role
from yoco.celery import app as celery
from yoco.contracts.models import Contract
from yoco.contracts.services import contract_create
from yoco.core.outbox import outbox_record
from yoco.guarantee.analytics.selectors import year_analytics
from yoco.guarantee.intake import heartbeat_accept, silences_account
from yoco.guarantee.models import AnalyticsJob, JobState, Placement, RestatementDue, Statement
from yoco.guarantee.selectors import year_report
from yoco.guarantee.services import placements_rebuild, reports_accept, years_close
from yoco.incidents.models import AgentBoot, RawReport, StepHour
from yoco.notify.digests import digests_make
from yoco.notify.endpoints import endpoint_create
from yoco.notify.fan_out import events_fan_out
from yoco.notify.models import DeliveryState, MailDelivery, WebhookAttempt, WebhookDelivery
from yoco.notify.preferences import mail_preference_set
from yoco.records.retention import PLAIN, retention_apply
from yoco.records.tasks import retention

NOW = datetime.datetime(2028, 3, 1, 12, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
SPAN: dict[str, Any] = {"world_size": 64, "gpus": 64}


@pytest.fixture
def clock(db: None) -> Iterator[Any]:
    with time_machine.travel(NOW, tick=False) as clock:
        yield clock


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred days for heartbeats: the first year was closed longer ago, the second still runs."""
    monkeypatch.setitem(settings.RETENTION_DAYS, "heartbeats", 100)


def beat(contract: Contract, run: str, day: str, *, hours: int = 3, ended: bool = True, seq: int = 0) -> None:
    """A run's heartbeats from a day's noon on, half an hour and a hundred steps apart."""
    start = datetime.datetime.fromisoformat(f"{day}T12:00:00+00:00")
    known = AgentBoot.objects.filter(contract=contract, run_id=run).first()
    boot = known.boot_id if known else uuid.uuid5(uuid.NAMESPACE_DNS, run)
    first = (known.last_step or 0) + 100 if known else 100
    for number in range(hours * 2 + 1):
        at = start + datetime.timedelta(minutes=30 * number)
        told = heartbeat(
            run_id=run,
            boot_id=str(boot),
            seq=seq,
            step=first + 100 * number,
            at=at.isoformat(),
            workload={**report()["workload"], **SPAN, "run_id": run},
        )
        if ended and number == hours * 2:
            told["run_ended"] = True
        heartbeat_accept(contract=contract, heartbeat=told, received_at=at)


def accept(contract: Contract, run: str, day: str, **changes: Any) -> None:
    """One incident of a run, ten minutes into it, and its report."""
    boot = uuid.uuid5(uuid.NAMESPACE_DNS, run)
    told = report(boot_id=str(boot), workload__run_id=run, workload__gpus=64, workload__world_size=64, **changes)
    start = datetime.datetime.fromisoformat(f"{day}T12:10:00+00:00")
    told["phases"] = {
        name: (start + datetime.timedelta(seconds=20 * n)).isoformat() for n, name in enumerate(told["phases"])
    }
    told["sent_at"] = (start + datetime.timedelta(minutes=10)).isoformat()
    outcome = reports_accept(
        contract=contract, key=None, reports=[told], received_at=start + datetime.timedelta(minutes=10)
    )
    assert [result.status for result in outcome.results] == ["created"], outcome.results


@pytest.fixture
def contract(clock: Any) -> Contract:
    """Three years: the first closed in October 2027, the second running. The runs say in their names what they are."""
    clock.move_to(datetime.datetime(2026, 9, 1, tzinfo=datetime.UTC))
    world = build_world()
    contract = contract_create(
        organisation=world.organisation,
        number="ACME-7",
        name="Cluster",
        currency="USD",
        time_zone="Europe/Madrid",
        starts_on=datetime.date(2026, 9, 1),
        ends_on=datetime.date(2029, 9, 1),
        guarantee_from=datetime.date(2026, 9, 1),
        price_per_gpu_hour="2.50",
        actor=None,
    )
    beat(contract, "over", "2026-11-02", seq=1)
    accept(contract, "over", "2026-11-02")
    # Its failure came after the last step, which nothing but the end in its heartbeat proves.
    accept(
        contract,
        "at-the-end",
        "2026-12-02",
        progress__last_committed_step=300,
        progress__first_step_after=None,
        progress__samples_after=76800,
        progress__samples_per_step=0,
    )
    beat(contract, "at-the-end", "2026-12-02", hours=1, seq=1)
    assert Placement.objects.get(run__run_id="at-the-end").rule == "run_complete"
    beat(contract, "silent", "2027-02-02", ended=False)
    clock.move_to("2027-02-03T12:00:00Z")
    silences_account(as_of=clock_now())
    beat(contract, "across", "2027-08-31", hours=12)
    clock.move_to("2027-10-05T12:00:00Z")
    assert years_close(as_of=clock_now()).closed
    beat(contract, "second-year", "2027-11-02", seq=1)
    accept(contract, "second-year", "2027-11-02")
    beat(contract, "lately", "2028-03-01", hours=0, ended=False)
    clock.move_to(NOW)
    silences_account(as_of=NOW)
    return contract


def clock_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def kept() -> set[str]:
    return set(AgentBoot.objects.values_list("run_id", flat=True))


def told(contract: Contract) -> list[Any]:
    """All results of all years, and the measured shares and rates of those that are not closed."""
    years = list(contract.years.order_by("number"))
    results = [dataclasses.asdict(year_report(year=year)) for year in years]
    for result in results:
        for name in {"statement", "credit"} & {name for name, value in result.items() if value}:
            del result[name]["id"]  # made at random
    open_years = [year for year in years if year.closed_at is None and year.starts_at < clock_now()]
    measured = [
        {code: table.rows for code, table in year_analytics(year=year, topics=(topic,)).tables.items()}
        for year in open_years
        for topic in ("rates", "goodput", "recovery", "waste")
    ]
    placings = Placement.objects.order_by("started_at")
    return [results, measured, list(placings.values("started_at", "outcome", "rule", "evidence"))]


def what_follows(contract: Contract, clock: Any) -> list[Any]:
    """What the next months bring: everything placed anew, a run falling silent, the second year's end and close."""
    placements_rebuild(contract=contract)
    said = [told(contract)]
    clock.move_to(NOW + DAY)
    said.append(silences_account(as_of=clock_now()))
    said.append(told(contract))
    clock.move_to(datetime.datetime(2028, 10, 5, tzinfo=datetime.UTC))
    said.append([statement.sha256 for statement in years_close(as_of=clock_now()).closed])
    said.append(list(RestatementDue.objects.values()))
    clock.move_to(NOW)
    return [said, told(contract)]


def test_no_result_silence_or_rate_that_is_not_frozen_changes(contract: Contract, clock: Any, short: None) -> None:
    before = told(contract)
    with transaction.atomic():
        without = what_follows(contract, clock)
        transaction.set_rollback(True)
    reports, statements = RawReport.objects.count(), list(Statement.objects.values_list("sha256", flat=True))
    hours = StepHour.objects.count()

    done = retention_apply(as_of=NOW)

    # Only the run that is over, and on which nothing rests, lost its heartbeats.
    assert kept() == {"at-the-end", "silent", "across", "second-year", "lately"}
    assert done["boots of agents"] == 1
    assert StepHour.objects.count() == hours - done["hours of step times"] > 0
    assert not StepHour.objects.filter(run__run_id__in=["over", "at-the-end", "silent"]).exists()
    assert told(contract) == before
    with transaction.atomic():
        following = what_follows(contract, clock)
        transaction.set_rollback(True)
    assert following == without
    assert without[0][1], "the run was to fall silent"
    assert (RawReport.objects.count(), list(Statement.objects.values_list("sha256", flat=True))) == (
        reports,
        statements,
    )
    assert retention_apply(as_of=NOW) == {}


def test_a_year_that_waits_for_its_restatement_keeps_its_heartbeats(contract: Contract, short: None) -> None:
    RestatementDue.objects.create(year=contract.years.get(number=1))
    assert retention_apply(as_of=NOW) == {}
    assert "over" in kept()


def test_heartbeats_are_kept_for_the_stated_days_after_the_close(contract: Contract) -> None:
    assert retention_apply(as_of=NOW) == {}
    assert retention_apply(as_of=datetime.datetime(2029, 10, 3, tzinfo=datetime.UTC)) == {}
    done = retention_apply(as_of=datetime.datetime(2029, 10, 6, tzinfo=datetime.UTC))
    assert done["boots of agents"] == 1


@pytest.fixture
def old(clock: Any) -> World:
    """Deliveries, sessions, invitations and answers of a year ago and of today."""
    clock.move_to(NOW - 400 * DAY)
    world = build_world()
    endpoint, _secret = endpoint_create(
        organisation=world.organisation, name="Ops", url="https://hooks.example/", kinds=[], actor=world.owner
    )
    mail_preference_set(membership=world.owner.memberships.get(), muted=[], digest="monthly", actor=world.owner)
    for days, person in ((400, world.viewer), (1, world.team_mate)):
        clock.move_to(NOW - days * DAY)
        Client().post(reverse("account_login"), {"login": person.email, "password": PASSWORD})
        invitation_create(
            organisation=world.organisation, email=f"{days}@example.com", role=Role.VIEWER, actor=world.owner
        )
        contract = world.contract
        for kind in ("statement.created", "credit.issued"):
            outbox_record(
                kind=kind,
                subject=contract,
                organisation_id=world.organisation.pk,
                payload={"contract": str(contract.pk)},
            )
        events_fan_out()
        digests_make(as_of=clock_now())
        AnalyticsJob.objects.create(
            inputs_sha256=f"{days:064}", question={}, state=JobState.DONE, result=b"", alive_at=clock_now()
        )
        now = clock_now()
        first = WebhookDelivery.objects.filter(endpoint=endpoint, ended_at=None).order_by("pk").first()
        assert first is not None
        # The other one waits for ever.
        WebhookDelivery.objects.filter(pk=first.pk).update(state=DeliveryState.DELIVERED, ended_at=now)
        WebhookAttempt.objects.create(delivery=first, at=now, milliseconds=3, status=200)
        MailDelivery.objects.filter(ended_at=None).update(state=DeliveryState.DELIVERED, ended_at=now)
    clock.move_to(NOW)
    return world


def test_what_is_old_goes_and_what_is_not_stays(old: World) -> None:
    untouched = {
        model: model._base_manager.count()
        for model in apps.get_models()
        if model._meta.label.startswith(("core.", "contracts.", "credits.", "guarantee.Statement", "incidents.Raw"))
    }
    out = StringIO()
    call_command("retention_apply", "--dry-run", stdout=out)
    assert Session.objects.count() == 2
    assert "1  webhook deliveries would be deleted" in out.getvalue()

    retention()  # as the beat calls it

    assert Session.objects.count() == UserSession.objects.count() == 1
    assert list(Invitation.objects.values_list("email", flat=True)) == ["1@example.com"]
    assert WebhookAttempt.objects.count() == 1
    assert WebhookDelivery.objects.filter(state=DeliveryState.PENDING).count() == 2  # however long they wait
    assert AnalyticsJob.objects.count() == 1
    mails = MailDelivery.objects.filter(created_at__lt=NOW - 2 * DAY)
    assert mails.count() == 0
    assert untouched == {model: model._base_manager.count() for model in untouched}
    out = StringIO()
    call_command("retention_apply", stdout=out)
    assert out.getvalue().startswith("Nothing")


def test_no_digest_is_sent_twice_because_its_row_was_deleted(old: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings.RETENTION_DAYS, "deliveries", 1)
    digests_make(as_of=NOW)
    MailDelivery.objects.update(state=DeliveryState.DELIVERED, ended_at=NOW)
    retention_apply(as_of=NOW + 20 * DAY)
    assert digests_make(as_of=NOW + 20 * DAY) == 0


def test_many_batches_end_in_the_same(old: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yoco.records.retention.BATCH", 3)
    monkeypatch.setattr("yoco.records.retention.MOST", 5)
    AnalyticsJob.objects.bulk_create(
        AnalyticsJob(inputs_sha256=f"x{n:063}", question={}, state=JobState.FAILED, alive_at=NOW - 9 * DAY)
        for n in range(11)
    )
    assert retention_apply(as_of=NOW)["answers of the analytics"] == 6
    assert retention_apply(as_of=NOW)["answers of the analytics"] == 6
    assert AnalyticsJob.objects.count() == 1


def test_a_setting_below_a_day_is_refused(clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings.RETENTION_DAYS, "deliveries", 0)
    with pytest.raises(CommandError, match="KEEP_DELIVERIES_DAYS") as error:
        call_command("retention_apply")
    assert error.value.returncode == 2


def test_the_beat_knows_the_task_and_the_rules_have_their_settings() -> None:
    scheduled = {entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()}
    celery.loader.import_default_modules()
    assert scheduled <= celery.tasks.keys()
    assert {name for _, name, _ in PLAIN} | {"heartbeats"} == settings.RETENTION_DAYS.keys()
