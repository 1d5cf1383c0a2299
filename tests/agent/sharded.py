"""Runs of sharded models: the outcome with every rank's part of the state."""

import re
from pathlib import Path
from typing import Any

from tests.agent.launch import EXAMPLE, Outcome, assert_lossless, train

SHARDED = EXAMPLE.with_name("text_fsdp.py")
PATIENT = ("--heartbeat-limit", "60", "--form-limit", "120")
"""For machines that do much else: a slow worker is no lost one."""


def train_sharded(folder: Path, replicas: int, **options: Any) -> Outcome:
    return train(folder, script=SHARDED, arguments=("--replicas", str(replicas)), options=PATIENT, **options)


def assert_exact(outcome: Outcome, reference: Outcome, source: str, incidents: int) -> None:
    """All ranks ended as in the undisturbed run, and every report says where the state came from."""
    assert outcome.status == 0, outcome.output
    assert outcome.parts == reference.parts, outcome.output
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
