"""`tools/recompute.py` knows none of the service's code and still comes to the same answer."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guarantee import years
from tests.guarantee.facts import at, incident, restart
from tests.people import World
from tools import recompute
from yoco.contracts.models import ContractYear
from yoco.guarantee import reviews
from yoco.guarantee.export import export_content, instant, placing_content, terms_content
from yoco.guarantee.models import RestatementDue
from yoco.guarantee.rules import (
    Placing,
    Terms,
    Year,
    failures_still_allowed,
    place_all,
    share_floor,
    tally,
    verdict,
)
from yoco.guarantee.selectors import CLAIMED, year_export
from yoco.guarantee.services import placements_refresh, years_close
from yoco.guarantee.statements import canonical_json, sha256_of
from yoco.incidents.models import IncidentState
from yoco.incidents.triage import triage_table

SCRIPT = Path(recompute.__file__)
AFTER = years.END + (years.END - years.START)


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
    n, k = counts.n(terms), counts.k
    claimed = {
        "counted": n,
        "resolved": k,
        "share_floor": share_floor(k, n),
        "verdict": verdict(counts, terms, partial=both[0].partial).name,
        "failures_still_allowed": failures_still_allowed(k, n, terms.threshold_num, terms.threshold_den),
        "by_kind": {kind: by_kind(kind, placings, terms) for kind in ("unplanned", "preventive", "planned")},
        "threshold": {"num": terms.threshold_num, "den": terms.threshold_den},
        "unit": terms.unit,
        "pending": counts.pending,
        "unaccounted": counts.unaccounted,
        "excluded": counts.excluded,
        "not_counted": counts.not_counted,
    }
    assert sorted(claimed) == sorted(CLAIMED)
    placed = {placing.incident: placing_content(placing) for placing in placings}
    export = export_content(
        year_id=both[0].id,
        years=both,
        incidents=facts,
        placed=placed,
        reviews=decided,
        claimed=claimed,
        statement=frozen(both[0], claimed, placings) if both[0].closed else None,
        about={},
    )
    return json.loads(json.dumps(export))


def by_kind(kind: str, placings: list[Placing], terms: Terms) -> dict:
    mine = [p for p in placings if p.lead and p.kind == kind and p.year == "year-1"]
    ratio = ["resolved", "not_resolved", *(["unaccounted"] if terms.unaccounted == "not_resolved" else [])]
    n, k = sum(p.outcome in ratio for p in mine), sum(p.outcome == "resolved" for p in mine)
    listed = [p for p in mine if p.outcome not in (*ratio, "pending")]
    return {
        "counted": n,
        "resolved": k,
        "share_floor": share_floor(k, n),
        "listed": len(listed),
        "listed_without_loss": sum(p.without_loss for p in listed),
    }


def frozen(of: Year, claimed: dict, placings: list[Placing], *, due: bool = False) -> dict:
    """A statement in the service's format, of these figures and placings."""
    assert of.terms is not None
    report = {**claimed, "year": {"guaranteed_from": instant(of.guaranteed_from), "partial": of.partial}}
    mine = [{"id": placing.incident, **placing_content(placing)} for placing in placings if placing.year == of.id]
    text = canonical_json({"terms": terms_content(of.terms), "report": report, "incidents": mine})
    return {"revision": 1, "sha256": sha256_of(text), "restatement_due": due, "canonical": text}


def test_it_agrees_on_a_thousand_generated_years() -> None:
    verdicts: dict[str, int] = {}
    rules: set[str] = set()
    for seed in range(1000):
        export = generated(seed)
        assert list(recompute.differences(export, *recompute.recompute(export))) == [], f"seed {seed}"
        verdicts[export["claimed"]["verdict"]] = verdicts.get(export["claimed"]["verdict"], 0) + 1
        rules |= {row["placed"]["rule"] for row in export["incidents"]}
    # A generator that never reaches a rule would prove nothing about it.
    assert min(verdicts[name] for name in ("met", "short", "no_failures", "undecided")) > 20
    assert rules == {
        *("without_loss", "path_healed", "relapse", "open_at_close", "open_at_close_listed", "dispute_upheld"),
        *("no_live_migration", "lost_progress", "rolled_back", "recomputed", "still_open", "silent", "silent_listed"),
        *("explained", "outside_contract", "outside_guarantee", "kind_not_counted", "trigger_not_evidenced"),
        *("path_failover", "excluded_user_error", "excluded_unsupported_workload", "excluded_agent_disabled"),
        *("excluded_site_outage", "excluded_with_unit", "run_complete"),
    }


def test_the_thousand_years_hold_statements() -> None:
    assert sum(generated(seed)["statement"] is not None for seed in range(100)) > 20


def test_it_contradicts_a_claim_that_was_improved() -> None:
    changed = 0
    for seed in range(200):
        export = generated(seed)
        if export["claimed"]["verdict"] != "short":
            continue
        export["claimed"]["verdict"] = "met"
        export["claimed"]["resolved"] += 1
        found = list(recompute.differences(export, *recompute.recompute(export)))
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
        years_close(as_of=AFTER)
    status, said = exported(tmp_path / "export.json", world.year)
    assert status == 0, said
    n = 24 if closed else 23
    assert f"19 of {n} resolved without loss" in said
    assert "The service claims the same." in said
    export = year_export(year=world.year)
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
    status, said = ran(file)
    assert status == 1
    assert "resolved: the service says 19, recomputed 18" in said
    assert "recomputed not_resolved (no_live_migration)" in said


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "yoco.export/1"}', '{"format": "yoco.export/2"}'])
def test_it_refuses_what_is_no_export(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "export.json"
    file.write_text(text)
    assert recompute.main([str(file)]) == 2
    assert "cannot be used as an export" in capsys.readouterr().err
    assert recompute.main([]) == 2
    assert recompute.main([str(tmp_path / "none.json")]) == 2


def exported(file: Path, year: ContractYear) -> tuple[int, str]:
    """What a stranger's run over this year's export says: its exit status and its words."""
    file.write_text(json.dumps(year_export(year=year)))
    return ran(file)


def ran(file: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(SCRIPT), str(file)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_facts_after_the_close_are_said_to_need_a_restatement_until_it_is_written(world: World, tmp_path: Path) -> None:
    fill(world)
    years_close(as_of=AFTER)
    late = incident(world.contract, **restart(at(2000)))
    placements_refresh(incident_ids=[late.pk])
    status, said = exported(tmp_path / "export.json", world.year)
    assert status == 3
    assert "RESTATEMENT DUE  statement: counted: the service says 24, recomputed 25" in said
    assert f"RESTATEMENT DUE  statement: incident {late.public_id} does not stand in the statement" in said
    assert "a restatement is due" in said
    years_close(as_of=AFTER)
    status, said = exported(tmp_path / "export.json", world.year)
    assert (status, "statement: revision 2" in said) == (0, True), said


def test_it_contradicts_a_statement_that_does_not_say_it_is_outdated(world: World, tmp_path: Path) -> None:
    fill(world)
    years_close(as_of=AFTER)
    late = incident(world.contract, **restart(at(2000)))
    placements_refresh(incident_ids=[late.pk])
    RestatementDue.objects.all().delete()
    status, said = exported(tmp_path / "export.json", world.year)
    assert status == 1
    assert "DIFFERS  statement: counted: the service says 24, recomputed 25" in said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content["report"].update(resolved=20), "resolved: it says 20, its own incidents give 19"),
        (lambda content: content["report"].update(verdict="met"), "verdict: it says met, its own incidents give short"),
        (lambda content: content["report"].update(share_floor="90.00"), "share_floor: it says 90.00"),
        (lambda content: content["report"].update(unit="incident"), "unit: the service says incident"),
        (lambda content: content["report"]["by_kind"]["unplanned"].update(resolved=24), "by_kind: the service says"),
        (lambda content: content["terms"].update(threshold_num=70), "terms: threshold_num is 70, exported 90"),
        (lambda content: content["incidents"][0].update(lead=False), "own incidents give"),
        (lambda content: content["incidents"][0].update(rule="path_healed"), "(path_healed), recomputed"),
        (lambda content: content["incidents"].pop(), "does not stand in the statement"),
    ],
)
def test_a_statement_that_was_forged_differs_even_with_a_matching_hash(
    world: World, tmp_path: Path, change: Callable[[dict], object], words: str
) -> None:
    fill(world)
    years_close(as_of=AFTER)
    export, file = year_export(year=world.year), tmp_path / "export.json"
    content = json.loads(export["statement"]["canonical"])
    change(content)
    text = canonical_json(content)
    export["statement"].update(canonical=text)
    file.write_text(json.dumps(export))
    status, said = ran(file)
    assert (status, "its sha256 is not that of its text" in said) == (1, True)
    export["statement"].update(sha256=sha256_of(text))
    file.write_text(json.dumps(export))
    status, said = ran(file)
    assert (status, words in said) == (1, True), said


def test_an_export_without_the_statement_of_its_closed_year_differs(world: World, tmp_path: Path) -> None:
    fill(world)
    years_close(as_of=AFTER)
    file = tmp_path / "export.json"
    file.write_text(json.dumps({**year_export(year=world.year), "statement": None}))
    status, said = ran(file)
    assert (status, "the year is closed and has none" in said) == (1, True)


def test_it_knows_the_same_xids_as_the_triage_table() -> None:
    table = {code: row.counts for (family, code), row in triage_table().items() if family == "xid"}
    foretelling = {code for code, counts in table.items() if counts in ("always", "if_interrupted", "precursor")}
    assert foretelling == recompute.FORETELLING_XIDS
    assert {code for code, counts in table.items() if counts == "by_severity"} == recompute.FATAL_XIDS
