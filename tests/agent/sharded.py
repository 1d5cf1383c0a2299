"""Runs of sharded models: the outcome with every rank's part of the state."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.agent.launch import ROOT, Outcome, assert_lossless, train

EXAMPLES = ROOT / "agent" / "examples"
PATIENT = ("--heartbeat-limit", "60", "--form-limit", "120")
"""For machines that do much else: a slow worker is no lost one."""


@dataclass
class Sharded:
    """A finished run and what each rank wrote: losses, and digests of its part."""

    outcome: Outcome
    parts: dict[str, Any]


def train_sharded(folder: Path, script: str, **options: Any) -> Sharded:
    outcome = train(folder, script=EXAMPLES / script, options=PATIENT, **options)
    return Sharded(outcome, {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("result.json*"))})


def assert_exact(run: Sharded, reference: Sharded, source: str, incidents: int) -> None:
    """All ranks ended as in the undisturbed run, and every report says where the state came from."""
    outcome = run.outcome
    assert outcome.status == 0, outcome.output
    assert run.parts == reference.parts, outcome.output
    assert len(outcome.resolved()) == incidents, outcome.output
    for report in outcome.resolved():
        assert_lossless(report)
        assert report["state"]["source"] == source


def strategies_reported(folder: Path) -> set[str]:
    """What the spooled reports of a run say of its workload, as strategy/replica groups."""
    spooled = b"".join(path.read_bytes() for path in (folder / "state" / "spool").rglob("*.segment"))
    found = re.findall(rb'"strategy":"(\w+)","replicas":(\d+)', spooled)
    return {f"{strategy.decode()}/{replicas.decode()}" for strategy, replicas in found}


def kills(points: list[str], ranks: list[int], first: int = 1, every: int = 2) -> str:
    """One kill after the other, each at the next point and rank; `point/n` means its n-th occurrence in the step."""
    found = []
    for index, text in enumerate(points):
        point, _, bucket = text.partition("/")
        place = f"rank={ranks[index % len(ranks)]},step={first + every * index},point={point}"
        found.append(f"kill:{place},who=any" + (f",bucket={bucket}" if bucket else ""))
    return ";".join(found)
