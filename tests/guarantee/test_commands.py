"""The commands: `guarantee_report`, `close_years`, `ledger_verify`; their output and exit statuses."""

import csv
import datetime
import io
import json
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.urls import reverse

from tests.guarantee.facts import at, incident, restart
from tests.people import World
from yoco.contracts.services import order_record
from yoco.core.money import Money
from yoco.credits.models import Credit
from yoco.credits.selectors import credit_of_year
from yoco.credits.services import credit_apply, credit_approve, credit_issue
from yoco.guarantee.models import Statement
from yoco.guarantee.services import placements_refresh, years_close
from yoco.incidents.models import IncidentState, Origin

IN_YEAR = datetime.datetime(2026, 11, 30, 12, tzinfo=datetime.UTC)
AFTER = datetime.datetime(2027, 11, 1, tzinfo=datetime.UTC)


def run(*arguments: str, **options: Any) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out, **options)
    return out.getvalue()


def refused(*arguments: str, **options: Any) -> CommandError:
    with pytest.raises(CommandError) as error:
        run(*arguments, **options)
    return error.value


def fill(world: World, **changes: Any) -> None:
    rows = [incident(world.contract, at(2 * n), **changes) for n in range(8)]
    rows += [incident(world.contract, **{**restart(at(500 + 2 * n)), **changes}) for n in range(2)]
    rows.append(incident(world.contract, at(600), kind="planned", signal="operator", xid=None, **changes))
    rows.append(incident(world.contract, at(610), state=IncidentState.OPEN, resumed_at=None, resolution="", **changes))
    placements_refresh(incident_ids=[row.pk for row in rows])


@pytest.fixture
def in_year() -> Any:
    with time_machine.travel(IN_YEAR, tick=False):
        yield


def test_the_json_form_has_the_agreed_names(world: World, in_year: None) -> None:
    fill(world)
    report = json.loads(run("guarantee_report", "ACME-1", "--format", "json"))
    assert report["contract"] == "ACME-1"
    assert report["year"]["start"] == "2026-08-31T22:00:00Z"
    assert report["year"]["end"] == "2027-08-31T22:00:00Z"
    assert report["year"]["state"] == "open"
    assert report["terms_version"] == 1
    assert (report["counted"], report["resolved"], report["share_floor"]) == (10, 8, "80.00")
    assert (report["verdict"], report["failures_still_allowed"], report["pending"]) == ("short", -1, 1)
    assert (report["excluded"], report["unaccounted"]) == (0, 0)
    assert report["by_kind"]["planned"] == {
        "counted": 0,
        "resolved": 0,
        "share_floor": None,
        "listed": 1,
        "listed_without_loss": 1,
    }
    waste = report["waste"]
    for name in ("actual_gpu_seconds", "counterfactual_gpu_seconds", "saved_gpu_seconds"):
        whole, milliseconds = waste[name].split(".")
        assert len(milliseconds) == 3
        assert int(whole) > 0
    assert waste["estimated"] is True
    assert (report["credit"], report["statement"], report["synthetic"]) == (None, None, False)
    assert report["information"]["interval_low"] == "49.01"
    assert 0 <= float(report["information"]["chance_of_ending_short"]) <= 1


def test_a_closed_year_shows_its_statement_and_credit(world: World) -> None:
    fill(world)
    years_close(as_of=AFTER)
    report = json.loads(run("guarantee_report", "ACME-1", "--year", "2026-12-24", "--format", "json"))
    statement = Statement.objects.get(year=world.year)
    assert report["statement"]["sha256"] == statement.sha256
    assert report["statement"]["revision"] == 1
    assert report["credit"]["state"] == "proposed"
    assert report["counted"] == 11
    text = run("guarantee_report", "ACME-1", "--year", "2026-12-24")
    assert statement.sha256 in text
    assert "8 of 11 resolved without loss (72.72 %)" in text


def test_the_csv_form_holds_the_same_values(world: World, in_year: None) -> None:
    fill(world)
    rows = dict(csv.reader(io.StringIO(run("guarantee_report", "ACME-1", "--format", "csv"))))
    assert rows["counted"] == "10"
    assert rows["year.state"] == "open"
    assert rows["by_kind.unplanned.share_floor"] == "80.00"
    assert rows["by_kind.planned.share_floor"] == ""
    assert rows["synthetic"] == "false"


def test_the_text_form_says_when_incidents_are_invented(world: World, in_year: None) -> None:
    assert "synthetic" not in run("guarantee_report", "ACME-1")
    fill(world, origin=Origin.SYNTHETIC)
    text = run("guarantee_report", "ACME-1")
    assert "(*synthetic*)" in text.splitlines()[0]
    assert json.loads(run("guarantee_report", "ACME-1", "--format", "json"))["synthetic"] is True


def test_a_year_without_failures_shows_no_percentage(world: World, in_year: None) -> None:
    text = run("guarantee_report", "ACME-1")
    assert "no_failures" in text
    assert "%" not in text
    report = json.loads(run("guarantee_report", "ACME-1", "--format", "json"))
    assert (report["verdict"], report["share_floor"]) == ("no_failures", None)


def test_few_failures_are_said_to_leave_no_miss(world: World, in_year: None) -> None:
    row = incident(world.contract, at(1))
    placements_refresh(incident_ids=[row.pk])
    assert "a single miss falls short" in run("guarantee_report", "ACME-1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["NONE-1"], "no contract NONE-1"),
        (["ACME-1", "--year", "24.12.2026"], "is no date"),
        (["ACME-1", "--year", "2026-02-30"], "is no date"),
        (["ACME-1", "--year", "2025-01-01"], "lies in no year"),
    ],
)
def test_bad_usage_is_status_2_and_says_what_to_do(world: World, arguments: list[str], words: str) -> None:
    error = refused("guarantee_report", *arguments)
    assert error.returncode == 2
    assert words in str(error)


def test_a_statement_that_does_not_hold_is_status_1(world: World) -> None:
    fill(world)
    years_close(as_of=AFTER)
    _tamper()
    error = refused("guarantee_report", "ACME-1", "--year", "2026-12-24")
    assert error.returncode == 1
    assert "its columns differ from its text" in str(error)


def _tamper() -> None:
    connection.check_constraints()  # PostgreSQL alters no table whose deferred constraints are still to be checked
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("ALTER TABLE guarantee_statement DISABLE TRIGGER USER")
        else:
            cursor.execute("DROP TRIGGER guarantee_statement_no_update")
        cursor.execute("UPDATE guarantee_statement SET verdict = 'met' WHERE verdict = 'short'")


def test_ledger_verify_says_what_holds_and_names_what_does_not(world: World) -> None:
    fill(world)
    years_close(as_of=AFTER)
    assert "Everything holds." in run("ledger_verify")
    assert "1 statements" in run("ledger_verify", "--contract", "ACME-1")
    _tamper()
    error = refused("ledger_verify")
    assert error.returncode == 1
    assert str(Statement.objects.get(year=world.year).pk) in str(error)
    assert refused("ledger_verify", "--contract", "NONE").returncode == 2


def test_close_years_tells_what_it_did_and_then_that_nothing_is_due(world: World) -> None:
    fill(world)
    with time_machine.travel(AFTER, tick=False):
        out = run("close_years")
        assert "closed    ACME-1 2026-09-01: short, 8 of 11" in out
        assert run("close_years").strip() == "nothing due"
        row = incident(world.contract, **restart(at(900)))
        placements_refresh(incident_ids=[row.pk])
        assert "restated  ACME-1 2026-09-01: revision 2, short" in run("close_years")


def test_close_years_does_not_look_ahead_unless_told(world: World, in_year: None) -> None:
    error = refused("close_years", "--as-of", "2027-11-01")
    assert error.returncode == 2
    assert "cannot be opened again" in str(error)
    assert not Statement.objects.exists()
    assert "closed    ACME-1" in run("close_years", "--as-of", "2027-11-01T00:00:00+01:00", "--allow-future")


@pytest.mark.parametrize("text", ["tomorrow", "2026-02-30", "2026-11-01T10:00:00"])
def test_close_years_refuses_times_that_it_would_have_to_guess(world: World, text: str) -> None:
    assert refused("close_years", "--as-of", text).returncode == 2


def test_close_years_acts_as_at_an_earlier_time(world: World) -> None:
    with time_machine.travel(AFTER, tick=False):
        assert "closing   ACME-1" in run("close_years", "--as-of", "2027-09-15")
        assert not Statement.objects.exists()


@pytest.mark.parametrize(
    ("method", "low", "high", "name"),
    [
        ("wilson", "49.01", "94.34", "Wilson"),
        ("clopper_pearson", "44.39", "97.48", "Clopper-Pearson"),
        ("jeffreys", "49.72", "95.60", "Jeffreys"),
    ],
)
def test_the_interval_is_by_the_method_that_is_asked_for(
    world: World, in_year: None, method: str, low: str, high: str, name: str
) -> None:
    fill(world)
    said = json.loads(run("guarantee_report", "ACME-1", "--interval", method, "--format", "json"))["information"]
    assert (said["interval_method"], said["interval_low"], said["interval_high"]) == (method, low, high)
    assert f"95 % interval ({name})" in run("guarantee_report", "ACME-1", "--interval", method)


def test_the_interval_of_a_closed_year_is_of_its_frozen_figures(world: World) -> None:
    fill(world)
    years_close(as_of=AFTER)
    frozen = ["guarantee_report", "ACME-1", "--year", "2026-12-24", "--format", "json"]
    before, asked = json.loads(run(*frozen)), json.loads(run(*frozen, "--interval", "jeffreys"))
    assert before["information"]["interval_method"] == "wilson"
    assert asked["information"].pop("interval_method") == "jeffreys"
    assert {**before, "information": asked["information"]} == {**asked}


def test_it_writes_any_form_to_a_file(world: World, in_year: None, tmp_path: Path) -> None:
    fill(world)
    file = tmp_path / "report.json"
    out = run("guarantee_report", "ACME-1", "--format", "json", "--output", str(file))
    assert json.loads(file.read_text())["contract"] == "ACME-1"
    assert str(file) in out
    error = refused("guarantee_report", "ACME-1", "--output", str(tmp_path / "missing" / "x"))
    assert (error.returncode, "cannot be written" in str(error)) == (2, True)


def test_the_pdf_is_that_of_the_portal(world: World, client: Client, tmp_path: Path) -> None:
    fill(world)
    years_close(as_of=AFTER)
    file = tmp_path / "statement.pdf"
    with time_machine.travel(AFTER, tick=False):  # the fonts in a PDF carry the time of its writing
        client.force_login(world.owner)
        run("guarantee_report", "ACME-1", "--year", "2026-12-24", "--format", "pdf", "--output", str(file))
        page = client.get(reverse("portal:statement_pdf", args=[world.contract.pk, world.year.pk, 1]))
    assert file.read_bytes() == page.content
    assert file.read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "pdf"], "--output FILE"),
        (["--format", "pdf", "--output", "x.pdf"], "has no statement yet"),
        (["--format", "pdf", "--output", "x.pdf", "--interval", "jeffreys"], "is the frozen statement"),
    ],
)
def test_a_pdf_needs_a_statement_and_a_file(world: World, in_year: None, arguments: list[str], words: str) -> None:
    error = refused("guarantee_report", "ACME-1", *arguments)
    assert error.returncode == 2
    assert words in str(error)


def test_it_says_what_is_left_of_a_credit(world: World) -> None:
    fill(world)
    years_close(as_of=AFTER)
    credit = Credit.objects.get()

    def line() -> str:
        text = run("guarantee_report", "ACME-1", "--year", "2026-12-24")
        return next(row for row in text.splitlines() if row.startswith("Credit"))[len("Credit") :].strip()

    def order(number: str, kind: str, minor: int) -> None:
        row = order_record(
            contract=world.contract,
            number=number,
            kind=kind,
            amount=Money(minor, "EUR"),
            ordered_on=datetime.date(2027, 10, 1),
            actor=world.account_manager,
        )
        if credit_of_year(year_id=world.year.pk).state == "approved":  # type: ignore[union-attr]
            credit_apply(order_id=row.pk, actor=world.account_manager)

    assert line() == "proposed, amount not known yet"
    order("E-1", "expansion", 100_000)
    assert line() == "250.00 EUR, proposed"
    credit_issue(credit_id=credit.pk, actor=world.account_manager, reason="The statement was checked.")
    assert line() == "250.00 EUR, issued, awaiting approval"
    credit_approve(credit_id=credit.pk, actor=world.second_account_manager)
    assert line() == "250.00 EUR, approved, nothing applied yet"
    order("E-2", "expansion", 10_000)
    assert line() == "250.00 EUR, of which 100.00 EUR applied, 150.00 EUR left"
    order("E-3", "expansion", 90_000)
    assert line() == "250.00 EUR, applied, 0 left"
