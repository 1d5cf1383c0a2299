"""`tools/recompute.py` knows none of the service's code and still comes to the same answer."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guarantee import years
from tests.guarantee.facts import at, incident, restart
from tests.people import World
from tools import recompute
from yoco.guarantee import reviews
from yoco.guarantee.export import export_content, placing_content
from yoco.guarantee.rules import place_all, tally, verdict
from yoco.guarantee.selectors import CLAIMED, year_export
from yoco.guarantee.services import placements_refresh, years_close
from yoco.incidents.models import IncidentState

SCRIPT = Path(recompute.__file__)


def generated(seed: int) -> dict:
    """An export of a generated year with what the service's own rules make of it."""
    rng = random.Random(seed)
    both = years.two_years(rng)
    facts = years.incidents(rng, rng.choice([0, 1, 3, 12, 40]))
    facts = list({one.id: one for one in facts}.values())
    decided = years.reviews(rng, facts)
    placings = place_all(facts, years=both, reviews=decided)
    counts = tally(placing for placing in placings if placing.year == both[0].id)
    terms = both[0].terms
    assert terms is not None
    claimed = {
        "counted": counts.n(terms),
        "resolved": counts.k,
        "verdict": verdict(counts, terms, partial=both[0].partial).name,
        "pending": counts.pending,
        "unaccounted": counts.unaccounted,
        "excluded": counts.excluded,
        "not_counted": counts.not_counted,
    }
    assert tuple(sorted(claimed)) == tuple(sorted(CLAIMED))
    export = export_content(
        year_id=both[0].id,
        years=both,
        incidents=facts,
        placed={placing.incident: placing_content(placing) for placing in placings},
        reviews=decided,
        claimed=claimed,
        about={},
    )
    return json.loads(json.dumps(export))


def test_it_agrees_on_a_thousand_generated_years() -> None:
    verdicts: dict[str, int] = {}
    rules: set[str] = set()
    for seed in range(1000):
        export = generated(seed)
        assert list(recompute.differences(export)) == [], f"seed {seed}"
        verdicts[export["claimed"]["verdict"]] = verdicts.get(export["claimed"]["verdict"], 0) + 1
        rules |= {row["placed"]["rule"] for row in export["incidents"]}
    # A generator that never reaches a rule would prove nothing about it.
    assert min(verdicts[name] for name in ("met", "short", "no_failures", "undecided")) > 20
    assert rules == {
        *("without_loss", "path_healed", "relapse", "open_at_close", "open_at_close_listed", "dispute_upheld"),
        *("no_live_migration", "lost_progress", "rolled_back", "recomputed", "still_open", "silent", "silent_listed"),
        *("explained", "outside_contract", "outside_guarantee", "kind_not_counted", "trigger_not_evidenced"),
        *("path_failover", "excluded_user_error", "excluded_unsupported_workload", "excluded_agent_disabled"),
        "excluded_site_outage",
    }


def test_it_contradicts_a_claim_that_was_improved() -> None:
    changed = 0
    for seed in range(200):
        export = generated(seed)
        if export["claimed"]["verdict"] != "short":
            continue
        export["claimed"]["verdict"] = "met"
        export["claimed"]["resolved"] += 1
        found = list(recompute.differences(export))
        assert any(line.startswith("verdict") for line in found)
        assert any(line.startswith("resolved") for line in found)
        changed += 1
    assert changed > 20


def fill(world: World) -> None:
    """A year with a bit of everything, reviews included."""
    rows = [incident(world.contract, at(10 * n)) for n in range(20)]
    failed = [incident(world.contract, **restart(at(1000 + 10 * n))) for n in range(3)]
    rows.append(incident(world.contract, at(3000), state=IncidentState.OPEN, resumed_at=None, resolution=""))
    rows.append(incident(world.contract, at(3100), kind="preventive", signal="ecc", xid=None))
    rows.append(incident(world.contract, at(3200), kind="planned", signal="operator", xid=None))
    rows.append(incident(world.contract, at(-5)))
    same = {"node": "node-x", "run": "run-9"}
    rows += [incident(world.contract, at(4000), **same), incident(world.contract, **restart(at(4000.3)), **same)]
    placements_refresh(incident_ids=[row.pk for row in rows + failed])
    exclusion = reviews.exclusion_propose(
        incident=failed[0], reason="user_error", note="Its own assertion.", actor=world.account_manager
    )
    reviews.exclusion_decide(exclusion=exclusion, accept=True, note="Seen.", actor=world.second_account_manager)
    dispute = reviews.dispute_raise(incident=rows[0], text="We lost a step.", actor=world.owner)
    reviews.dispute_decide(dispute=dispute, accept=True, note="True.", actor=world.account_manager)


@pytest.mark.parametrize("closed", [False, True])
def test_a_stranger_recomputes_a_real_export(world: World, tmp_path: Path, closed: bool) -> None:
    fill(world)
    if closed:
        years_close(as_of=years.END + (years.END - years.START))
    export = year_export(year=world.year)
    file = tmp_path / "export.json"
    file.write_text(json.dumps(export))
    ran = subprocess.run(
        [sys.executable, "-I", "-S", str(SCRIPT), str(file)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    n = 24 if closed else 23
    assert f"19 of {n} resolved without loss" in ran.stdout
    assert "The service claims the same." in ran.stdout
    told = [(row["state"], row["decided_by"]) for row in export["exclusions"] + export["disputes"]]
    assert told == [("accepted", "Boris"), ("accepted", "Amanda")]


def test_it_says_what_differs_and_fails(world: World, tmp_path: Path) -> None:
    fill(world)
    export = year_export(year=world.year)
    next(row for row in export["incidents"] if row["placed"]["rule"] == "without_loss")["facts"].update(
        digest_received="00" * 16
    )
    file = tmp_path / "export.json"
    file.write_text(json.dumps(export))
    ran = subprocess.run([sys.executable, str(SCRIPT), str(file)], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "resolved: the service says 19, recomputed 18" in ran.stdout
    assert "recomputed not_resolved (no_live_migration)" in ran.stdout


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "yoco.export/2"}', '{"format": "yoco.export/1"}'])
def test_it_refuses_what_is_no_export(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "export.json"
    file.write_text(text)
    assert recompute.main([str(file)]) == 2
    assert "cannot be used as an export" in capsys.readouterr().err
    assert recompute.main([]) == 2
    assert recompute.main([str(tmp_path / "none.json")]) == 2
