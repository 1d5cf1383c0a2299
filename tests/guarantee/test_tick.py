"""`manage.py tick`: everything that is due, once."""

import datetime
from io import StringIO

import pytest
import time_machine
from django.core.management import CommandError, call_command

from tests.ingest.reports import heartbeat
from tests.people import World
from yoco.contracts.models import YearState
from yoco.credits.models import Credit
from yoco.guarantee import due
from yoco.guarantee.intake import heartbeat_accept
from yoco.incidents.models import Incident
from yoco.notify.tasks import tick

BEATING = datetime.datetime(2026, 11, 2, 9, 0, tzinfo=datetime.UTC)


def run() -> str:
    out = StringIO()
    call_command("tick", stdout=out)
    return out.getvalue()


def test_a_silent_run_at_last_costs_a_credit(world: World) -> None:
    heartbeat_accept(contract=world.contract, heartbeat=heartbeat(at=BEATING.isoformat()), received_at=BEATING)
    with time_machine.travel(BEATING + datetime.timedelta(minutes=30)):
        assert run().splitlines() == [
            "4 monthly snapshots made",  # two months of two contracts
            "1 proof of the ledger started",
        ]
        assert run() == "nothing was due\n"
    with time_machine.travel(BEATING + datetime.timedelta(minutes=61)):
        assert run().splitlines() == [
            "1 unaccounted incidents opened",
            "1 events passed on",
            "3 deliveries sent",  # to the members of the organisation
        ]
        tick()
    assert Incident.objects.get().placement.outcome == "unaccounted"
    with time_machine.travel(datetime.datetime(2027, 12, 1, tzinfo=datetime.UTC)):
        assert "contract years moved on" in run()
        assert "nothing was due" in run()
    world.year.refresh_from_db()
    assert world.year.state == YearState.CLOSED
    assert Credit.objects.get().year == world.year


def test_a_step_that_fails_keeps_no_other_from_running(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*, as_of: datetime.datetime) -> dict[str, int]:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(due, "silences_account", broken)
    later = time_machine.travel(datetime.datetime(2027, 12, 1, tzinfo=datetime.UTC))
    with later, pytest.raises(CommandError, match="unaccounted incidents opened"):
        run()
    world.year.refresh_from_db()
    assert world.year.state == YearState.CLOSED
