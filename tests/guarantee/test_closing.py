"""Closing contract years: frozen statements, restatements, catching up, and doing nothing twice."""

import datetime
import hashlib
import json
import threading
from typing import Any

import pytest
import time_machine
from django.db import DatabaseError, connection, transaction

from tests.guarantee.facts import END, at, incident, restart
from tests.ingest.conftest import AgentClient
from tests.ingest.reports import report
from tests.people import World, build_world
from yoco.contracts.models import Contract, ContractYear, YearState
from yoco.contracts.services import contract_create
from yoco.core.models import AuditEntry, OutboxEvent
from yoco.core.problem import DomainError
from yoco.credits.models import Credit
from yoco.credits.services import credit_approve, credit_issue
from yoco.guarantee import placements, services, statements
from yoco.guarantee.models import Placement, RestatementDue, Statement
from yoco.guarantee.neighbourhood import neighbourhood
from yoco.guarantee.selectors import year_report
from yoco.guarantee.services import placements_refresh, year_restate, years_close
from yoco.guarantee.verify import statements_verify
from yoco.incidents.models import Incident, IncidentState, Origin

CLOSES = datetime.datetime(2027, 9, 30, 22, tzinfo=datetime.UTC)  # 1 October in Madrid, 30 days after the year
AFTER = CLOSES + datetime.timedelta(days=20)
SECOND = datetime.timedelta(seconds=1)


def fill(world: World, resolved: int, not_resolved: int, **changes: Any) -> list[Incident]:
    rows = [incident(world.contract, at(2 * n), **changes) for n in range(resolved)]
    rows += [incident(world.contract, **{**restart(at(5000 + 2 * n)), **changes}) for n in range(not_resolved)]
    placements_refresh(incident_ids=[row.pk for row in rows])
    return rows


def state(world: World) -> str:
    return ContractYear.objects.get(pk=world.year.pk).state


def test_it_closes_a_short_year_and_proposes_one_credit(world: World) -> None:
    fill(world, 8, 2)
    report = year_report(year=world.year)
    assert (report.counted, report.resolved, report.share_floor, report.verdict) == (10, 8, "80.00", "short")
    done = years_close(as_of=AFTER)
    closed = {s.year_id: s for s in done.closed}
    assert len(closed) == 2  # the stranger's year, which had no failures, is closed beside it
    statement = closed[world.year.pk]
    assert (statement.resolved, statement.counted, statement.verdict) == (8, 10, "short")
    assert Credit.objects.get().statement_id == statement.pk
    assert statements_verify() == []
    again = years_close(as_of=AFTER)
    assert (again.closing, again.closed, again.restated) == ([], [], [])
    assert Statement.objects.count() == 2
    frozen = year_report(year=world.year)
    assert (frozen.counted, frozen.resolved, frozen.verdict) == (10, 8, "short")
    assert frozen.statement is not None
    assert frozen.statement.sha256 == statement.sha256
    assert frozen.credit is not None
    assert frozen.credit["state"] == "proposed"
    assert Placement.objects.filter(lead=True).count() == 10


def test_closing_places_each_incident_once_in_the_order_of_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    same = {"node": "node-1", "run": "run-1"}
    rows = [incident(world.contract, at(hours)) for hours in (30, 10, 20)]
    before = incident(world.contract, **{**restart(END - 600 * SECOND), **same})
    after = incident(world.contract, **{**restart(END + 1500 * SECOND), **same})
    placements_refresh(incident_ids=[row.pk for row in (*rows, before, after)])
    assert Placement.objects.get(pk=after.pk).year_id == world.year.pk
    chunks: list[list[int]] = []

    def loads(contracts: Any, changed: list[int], held: Any) -> Any:
        chunks.append(changed)
        return neighbourhood(contracts, changed, held)

    monkeypatch.setattr(placements, "CHUNK", 2)
    monkeypatch.setattr(placements, "neighbourhood", loads)
    years_close(as_of=AFTER)
    late, early, middle = rows
    assert chunks == [[early.pk, middle.pk], [late.pk, before.pk], [after.pk]]


def test_a_met_year_and_an_empty_one_propose_nothing(world: World) -> None:
    fill(world, 9, 1)
    years_close(as_of=AFTER)
    verdicts = dict(Statement.objects.values_list("year__contract__number", "verdict"))
    assert verdicts == {"ACME-1": "met", "OTHER-1": "no_failures"}
    assert not Credit.objects.exists()


@pytest.mark.parametrize(
    ("as_of", "expected"),
    [
        (END - SECOND, YearState.OPEN),
        (END, YearState.CLOSING),
        (CLOSES - SECOND, YearState.CLOSING),
        (CLOSES, YearState.CLOSED),
    ],
)
def test_a_year_is_open_then_closing_then_closed(world: World, as_of: datetime.datetime, expected: YearState) -> None:
    years_close(as_of=as_of)
    assert state(world) == expected
    assert Statement.objects.filter(year=world.year).exists() is (expected == YearState.CLOSED)


def test_a_statement_freezes_what_it_was_computed_from(world: World) -> None:
    rows = fill(world, 3, 1)
    incident(world.contract, kind="planned", signal="operator", xid=None)
    silent = incident(
        world.contract, at(70), origin=Origin.SILENCE, state=IncidentState.OPEN, resumed_at=None, resolution=""
    )
    placements_refresh(incident_ids=list(Incident.objects.values_list("pk", flat=True)))
    years_close(as_of=AFTER)
    statement = Statement.objects.get(year=world.year)
    content = json.loads(statement.canonical)
    assert hashlib.sha256(statement.canonical.encode()).hexdigest() == statement.sha256
    assert statements.canonical_json(content) == statement.canonical
    assert content["terms"]["threshold_num"] == 90
    assert content["terms"]["exclusions"] == world.terms.exclusions
    assert content["report"]["counted"] == statement.counted == 5
    assert content["report"]["unaccounted"] == 1
    assert content["report"]["waste"]["actual_gpu_seconds"] == year_report(year=world.year).waste.actual_gpu_seconds
    told = {item["id"]: item for item in content["incidents"]}
    assert len(told) == 6
    assert told[str(rows[0].public_id)]["rule"] == "without_loss"
    assert told[str(rows[3].public_id)]["rule"] == "no_live_migration"
    assert told[str(silent.public_id)]["outcome"] == "unaccounted"
    assert "kind_not_counted" in {item["rule"] for item in told.values()}


def test_the_same_facts_freeze_the_same_incidents_whatever_their_order(world: World) -> None:
    fill(world, 4, 1)
    before = json.loads(_statement(world).canonical)["incidents"]
    Placement.objects.all().delete()
    for pk in Incident.objects.order_by("-started_at").values_list("pk", flat=True):
        placements_refresh(incident_ids=[pk])
    assert statements.statement_differs(year=world.year, statement=Statement.objects.get(year=world.year)) is False
    assert len(before) == 5


def _statement(world: World) -> Statement:
    years_close(as_of=AFTER)
    return Statement.objects.get(year=world.year)


def test_an_incident_that_is_still_open_at_the_close_is_not_resolved(world: World) -> None:
    rows = fill(world, 8, 0)
    still = incident(world.contract, at(300), state=IncidentState.OPEN, resumed_at=None, resolution="")
    placements_refresh(incident_ids=[still.pk])
    assert year_report(year=world.year).verdict == "undecided"
    statement = _statement(world)
    assert (statement.resolved, statement.counted, statement.verdict) == (len(rows), 9, "short")
    assert Placement.objects.get(pk=still.pk).rule == "open_at_close"


def test_late_reports_count_while_the_year_is_closing(world: World) -> None:
    years_close(as_of=END)
    assert state(world) == YearState.CLOSING
    fill(world, 0, 1)
    assert year_report(year=world.year).counted == 1
    assert not RestatementDue.objects.exists()
    assert _statement(world).counted == 1


def test_a_late_report_after_the_close_makes_a_restatement(world: World) -> None:
    fill(world, 9, 1)
    first = _statement(world)
    fill(world, 0, 1)
    report = year_report(year=world.year)
    assert (report.counted, report.verdict, report.restatement_due) == (10, "met", True)
    done = years_close(as_of=AFTER)
    (second,) = done.restated
    assert (second.revision, second.reason) == (2, "late_report")
    assert (second.resolved, second.counted, second.verdict) == (9, 11, "short")
    assert json.loads(second.canonical)["previous_sha256"] == first.sha256
    assert Statement.objects.get(pk=first.pk).canonical == first.canonical
    assert Credit.objects.get().statement_id == second.pk
    assert years_close(as_of=AFTER).restated == []
    assert statements_verify() == []
    assert AuditEntry.objects.filter(action="year.restated").count() == 1
    assert OutboxEvent.objects.filter(kind="statement.restated").count() == 1


def test_a_restatement_that_finds_the_year_met_reverses_an_unused_credit(world: World) -> None:
    rows = fill(world, 8, 2)
    years_close(as_of=AFTER)
    credit = Credit.objects.get()
    credit_issue(credit_id=credit.pk, actor=world.account_manager, reason="Fell short.")
    credit_approve(credit_id=credit.pk, actor=world.second_account_manager)
    Incident.objects.filter(pk=rows[-1].pk).update(
        **{name: getattr(rows[0], name) for name in ("resolution", "state_source", "checkpoint_loaded")}
    )
    proof = incident(world.contract, rows[-1].started_at)
    values = {
        field: getattr(proof, field)
        for field in ("detected_at", "quiesced_at", "spare_ready_at", "state_moved_at", "state_verified_at")
    } | {field: getattr(proof, field) for field in ("resumed_at", "first_step_after", "samples_after", "state_bytes")}
    values |= {field: getattr(proof, field) for field in ("digest_algorithm", "digest_sent", "digest_received")}
    proof.delete()
    Incident.objects.filter(pk=rows[-1].pk).update(**values, revision=2)
    placements_refresh(incident_ids=[rows[-1].pk])
    years_close(as_of=AFTER)
    latest = Statement.objects.filter(year=world.year).order_by("-revision")[0]
    assert (latest.revision, latest.resolved, latest.counted, latest.verdict) == (2, 9, 10, "met")
    credit.refresh_from_db()
    assert credit.state == "reversed"


def test_a_report_that_changes_no_placing_restates_nothing(world: World) -> None:
    rows = fill(world, 3, 0)
    _statement(world)
    placements_refresh(incident_ids=[row.pk for row in rows])
    assert not RestatementDue.objects.exists()
    with pytest.raises(DomainError, match="Nothing has changed"):
        year_restate(year=world.year, reason="To be sure.", actor=world.account_manager)


def test_people_can_restate_at_once_with_a_reason(world: World) -> None:
    fill(world, 9, 1)
    with pytest.raises(DomainError, match="Only a closed year"):
        year_restate(year=world.year, reason="Early.", actor=world.account_manager)
    _statement(world)
    fill(world, 1, 0)
    with pytest.raises(DomainError, match="needs a reason"):
        year_restate(year=world.year, reason=" ", actor=world.account_manager)
    second = year_restate(year=world.year, reason="Logs of March arrived.", actor=world.account_manager)
    assert (second.revision, second.reason, second.resolved) == (2, "Logs of March arrived.", 10)
    assert not RestatementDue.objects.exists()
    assert years_close(as_of=AFTER).restated == []


def test_a_late_proof_of_a_resolution_before_the_close_is_believed_and_one_after_it_is_not(world: World) -> None:
    still = [
        incident(world.contract, at(8000 + 10 * n), state=IncidentState.OPEN, resumed_at=None, resolution="")
        for n in range(2)
    ]
    placements_refresh(incident_ids=[row.pk for row in still])
    assert _statement(world).resolved == 0
    in_time, too_late = still
    for row, resumed in ((in_time, CLOSES - SECOND), (too_late, CLOSES)):
        Incident.objects.filter(pk=row.pk).update(
            state=IncidentState.RESOLVED, resumed_at=resumed, resolution="live_migration", revision=2
        )
    placements_refresh(incident_ids=[row.pk for row in still])
    (second,) = years_close(as_of=AFTER).restated
    assert (second.resolved, second.counted) == (1, 2)
    assert Placement.objects.get(pk=too_late.pk).rule == "open_at_close"


def test_it_catches_up_after_days_of_downtime(world: World) -> None:
    """Three years passed while nothing ran: all that are due are closed in one go, each under its own terms."""
    contract = contract_create(
        organisation=world.organisation,
        number="LONG",
        name="Long",
        currency="EUR",
        time_zone="Asia/Tokyo",
        starts_on=datetime.date(2026, 9, 1),
        ends_on=datetime.date(2030, 9, 1),
        guarantee_from=datetime.date(2026, 12, 1),
        actor=None,
    )
    with time_machine.travel(datetime.datetime(2029, 12, 24, tzinfo=datetime.UTC), tick=False):
        done = years_close(as_of=datetime.datetime.now(datetime.UTC))
        assert years_close(as_of=datetime.datetime.now(datetime.UTC)).closed == []
    states = list(contract.years.order_by("number").values_list("state", flat=True))
    assert states == ["closed", "closed", "closed", "open"]
    assert len([s for s in done.closed if s.year.contract_id == contract.pk]) == 3
    assert year_report(year=contract.years.get(number=1)).year.partial


def test_a_year_without_guarantee_closes_without_a_statement(world: World) -> None:
    Contract.objects.filter(pk=world.contract.pk).update(guarantee_from=None)
    ContractYear.objects.filter(pk=world.year.pk).update(guaranteed_from=None, guaranteed_until=None)
    fill(world, 0, 1)
    done = years_close(as_of=AFTER)
    assert [year.pk for year in done.closed_unguaranteed] == [world.year.pk]
    assert not Statement.objects.filter(year=world.year).exists()
    report = year_report(year=ContractYear.objects.get(pk=world.year.pk))
    assert (report.counted, report.not_counted, report.verdict_rule) == (0, 1, "no_guarantee")
    assert statements_verify() == []


def test_one_year_that_cannot_close_does_not_hold_up_the_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(world, 8, 2)
    write = services.statement_write

    def fail_for_acme(*, year: ContractYear, reason: str) -> Statement:
        if year.contract_id == world.contract.pk:
            raise DatabaseError("disk full")
        return write(year=year, reason=reason)

    monkeypatch.setattr(services, "statement_write", fail_for_acme)
    with pytest.raises(ExceptionGroup):
        years_close(as_of=AFTER)
    assert state(world) == YearState.OPEN
    assert not Statement.objects.filter(year=world.year).exists()
    assert Statement.objects.filter(year__contract=world.stranger_contract).exists()
    monkeypatch.setattr(services, "statement_write", write)
    assert [s.year_id for s in years_close(as_of=AFTER).closed] == [world.year.pk]


@pytest.mark.parametrize("fault", ["no_verdict", "empty"])
def test_terms_can_leave_a_year_without_a_verdict(world: World, fault: str) -> None:
    terms = {"partial_year": "no_verdict"} if fault == "no_verdict" else {"empty_year": "no_verdict"}
    contract = contract_create(
        organisation=world.organisation,
        number="PART",
        name="Part",
        currency="EUR",
        time_zone="UTC",
        starts_on=datetime.date(2026, 9, 1),
        ends_on=datetime.date(2027, 3, 1),
        guarantee_from=datetime.date(2026, 9, 1),
        actor=None,
        terms=terms,
    )
    years_close(as_of=AFTER)
    statement = Statement.objects.get(year__contract=contract)
    assert statement.verdict == "undecided"
    rules = {"no_verdict": "partial_year_no_verdict", "empty": "empty_year_no_verdict"}
    assert json.loads(statement.canonical)["report"]["verdict_rule"] == rules[fault]


@pytest.mark.parametrize("verb", ["UPDATE guarantee_statement SET verdict = 'met'", "DELETE FROM guarantee_statement"])
def test_a_statement_cannot_be_changed(world: World, verb: str) -> None:
    fill(world, 8, 2)
    _statement(world)
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(verb)


TAMPERED = {
    "canonical": ("REPLACE(canonical, '\"resolved\":8', '\"resolved\":9')", "its hash is not that of its text"),
    "verdict": ("'met'", "its columns differ from its text"),
    "resolved": ("9", "its columns differ from its text"),
    "revision": ("2", "its columns differ from its text"),
    "summary": ("'{}'", "its summary differs from its text"),
}


@pytest.mark.parametrize("column", TAMPERED)
def test_a_statement_that_was_tampered_with_is_named(world: World, column: str) -> None:
    fill(world, 8, 2)
    statement = _statement(world)
    value, reason = TAMPERED[column]
    with connection.cursor() as cursor:
        _triggers_off(cursor)
        cursor.execute(f"UPDATE guarantee_statement SET {column} = {value} WHERE verdict = 'short'")
    broken = statements_verify(contract_id=world.contract.pk)
    assert reason in {row.reason for row in broken}
    assert {row.row for row in broken} == {f"guarantee_statement {statement.pk}"}
    assert statements_verify(contract_id=world.stranger_contract.pk) == []


def test_a_forged_text_with_its_right_hash_still_contradicts_itself(world: World) -> None:
    fill(world, 8, 2)
    statement = _statement(world)
    content = json.loads(statement.canonical)
    content["report"]["resolved"], content["report"]["verdict"] = 9, "met"
    forged = statements.canonical_json(content)
    with connection.cursor() as cursor:
        _triggers_off(cursor)
        cursor.execute(
            "UPDATE guarantee_statement SET canonical = %s, sha256 = %s, resolved = 9, verdict = 'met', summary = %s"
            " WHERE verdict = 'short'",
            [forged, statements.sha256_of(forged), json.dumps(content["report"])],
        )
    assert "its incidents do not add up to its k of n" in {row.reason for row in statements_verify()}


def test_a_closed_year_without_its_statement_is_named(world: World) -> None:
    ContractYear.objects.filter(pk=world.year.pk).update(state=YearState.CLOSED, closed_at=AFTER)
    assert [row.reason for row in statements_verify()] == ["is closed without a statement"]


def _triggers_off(cursor: Any) -> None:
    """What a superuser can do."""
    connection.check_constraints()  # PostgreSQL alters no table whose deferred constraints are still to be checked
    if connection.vendor == "postgresql":
        cursor.execute("ALTER TABLE guarantee_statement DISABLE TRIGGER USER")
        return
    cursor.execute("SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'guarantee_statement'")
    for (name,) in cursor.fetchall():
        cursor.execute(f'DROP TRIGGER "{name}"')


@pytest.mark.django_db(transaction=True)
def test_years_closed_by_many_at_once_while_reports_arrive_are_closed_once() -> None:
    world = build_world()
    fill(world, 8, 2)
    barrier = threading.Barrier(5)
    failures: list[BaseException] = []
    late: list[int] = []

    def close() -> None:
        try:
            barrier.wait(timeout=30)
            years_close(as_of=AFTER)
        except BaseException as error:
            failures.append(error)
        finally:
            connection.close()

    def report() -> None:
        try:
            barrier.wait(timeout=30)
            for n in range(5):
                row = incident(world.contract, **restart(at(6000 + 2 * n)), run="late")
                placements_refresh(incident_ids=[row.pk])
                late.append(row.pk)
        except BaseException as error:
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=close) for _ in range(4)] + [threading.Thread(target=report)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=90)
    assert failures == []
    assert len(late) == 5
    years_close(as_of=AFTER)
    assert Statement.objects.filter(year=world.year, revision=1).count() == 1
    assert Credit.objects.count() == 1
    latest = Statement.objects.filter(year=world.year).order_by("-revision")[0]
    # Whether a report came before the close or after it, the latest statement knows it, and it once.
    assert (latest.resolved, latest.counted) == (8, 15)
    assert statements_verify() == []


def test_absurd_waste_does_not_keep_a_year_from_closing(world: World) -> None:
    """Each report is within its limits, and twenty of them are more GPU-milliseconds than 64 bits hold."""
    lost = {"run_id": "x", "gpus": 1_000_000, "lost_seconds": 1e9}
    agent = AgentClient(world.key_text)
    with time_machine.travel(AFTER, tick=False):
        told = [report(seq=n, spare={"origin": "preempted", "preempted": lost}) for n in range(1, 21)]
        assert agent.statuses(*told) == ["created"] * 20
        assert float(year_report(year=world.year).waste.actual_gpu_seconds) > 2**63 / 1000
        years_close(as_of=AFTER)
    assert _statement(world).verdict == "met"


def test_a_late_fact_that_changes_the_waste_alone_is_restated(world: World) -> None:
    """A report after the close says that a step takes longer: k of n stays, the frozen waste is no longer true."""
    told = report(progress__step_seconds=0.41)
    agent = AgentClient(world.key_text)
    with time_machine.travel(AFTER, tick=False):
        assert agent.statuses(told) == ["created"]
        years_close(as_of=AFTER)
        before = year_report(year=world.year)
        late = {"type": "incident.amended", "incident_id": told["incident_id"], "seq": 2, "sent_at": AFTER.isoformat()}
        assert agent.statuses(report(**late, progress__step_seconds=4.1)) == ["created"]
        due = year_report(year=world.year)
        assert (due.restatement_due, due.waste) == (True, before.waste)
        assert RestatementDue.objects.get().reasons == ["late_report"]
        (second,) = years_close(as_of=AFTER).restated
        after = year_report(year=world.year)
        assert (second.revision, after.restatement_due) == (2, False)
        assert (after.counted, after.resolved, after.verdict) == (before.counted, before.resolved, before.verdict)
        assert float(after.waste.actual_gpu_seconds) > float(before.waste.actual_gpu_seconds)
        # The same once more changes nothing that was frozen.
        assert agent.statuses(report(**{**late, "seq": 3}, progress__step_seconds=4.1)) == ["created"]
        assert not year_report(year=world.year).restatement_due
