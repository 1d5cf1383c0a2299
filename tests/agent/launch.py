"""Start real runs of the agent, as a user would, and read what they leave behind."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.agent.zygote import Launcher

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "agent" / "examples" / "text_ddp.py"
SCRIPTS = Path(__file__).parent / "scripts"


@dataclass
class Outcome:
    """A finished run."""

    status: int
    output: str
    result: dict[str, Any] | None
    """What the script wrote to `--out`."""
    parts: dict[str, Any]
    """The same of each rank, by file name."""
    reports: list[dict[str, Any]]
    """Every stated fact, in order, each with its `event`."""

    def resolved(self) -> list[dict[str, Any]]:
        return [report for report in self.reports if report["event"] == "resolved"]


def run_arguments(folder: Path, *, workers: int, spares: int, script: Path, options: tuple[str, ...]) -> list[str]:
    """Of `python -m agent`."""
    run = ["run", "--workers", str(workers), "--spares", str(spares)]
    return [*run, "--state-dir", str(folder / "state"), "--run-id", folder.name, *options, str(script)]


def command(folder: Path, *, workers: int, spares: int, script: Path, options: tuple[str, ...] = ()) -> list[str]:
    """As typed in a shell."""
    arguments = run_arguments(folder, workers=workers, spares=spares, script=script, options=options)
    return [sys.executable, "-m", "agent", *arguments]


def environment(faults: str = "") -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if not name.startswith("YOCO_")}
    return {**found, "YOCO_FAULTS": faults}


def train(
    folder: Path,
    *,
    faults: str = "",
    workers: int = 3,
    spares: int = 1,
    steps: int = 12,
    script: Path = EXAMPLE,
    arguments: tuple[str, ...] = (),
    options: tuple[str, ...] = (),
    variables: dict[str, str] | None = None,
    timeout: float = 100,
) -> Outcome:
    """Run to the end. A run that does not end within `timeout` seconds fails the test."""
    folder.mkdir(parents=True, exist_ok=True)
    line = run_arguments(folder, workers=workers, spares=spares, script=script, options=options)
    line += ["--steps", str(steps), "--out", str(folder / "result.json"), *arguments]
    log = folder / "log"
    launcher = Launcher(line, folder=ROOT, environment={**environment(faults), **(variables or {})}, output=log)
    try:
        status = launcher.wait(timeout)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"the run hangs; its output:\n{log.read_text()}") from None
    finally:
        launcher.kill()
    return read(folder, status, log.read_text())


def read(folder: Path, status: int, output: str) -> Outcome:
    """What a finished run left in `folder`."""
    incidents = folder / "state" / "incidents.jsonl"
    reports = [json.loads(item) for item in incidents.read_text().splitlines()] if incidents.exists() else []
    parts = {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("result.json*"))}
    return Outcome(status, output, parts.get("result.json"), parts, reports)


def last_step_reported(folder: Path) -> list[int]:
    """The step that each word of a run's end names, as it lies in the spool."""
    spooled = b"".join(path.read_bytes() for path in (folder / "state" / "spool").rglob("*.segment"))
    return [int(step) for step in re.findall(rb'"step":(\d+),"at":"[^"]*","run_ended":true', spooled)]


def assert_lossless(report: dict[str, Any]) -> None:
    """The report carries all evidence that a rank moved without loss."""
    progress, state, phases = report["progress"], report["state"], report["phases"]
    assert report["resolution"] == "live_migration"
    assert progress["first_step_after"] == progress["last_committed_step"] + 1
    assert progress["samples_after"] == progress["samples_before"] + progress["samples_per_step"]
    assert progress["checkpoint_loaded"] is False
    assert state["source"] in ("replica", "leaving_worker", "redundant_shard")
    assert state["bytes"] > 0
    assert state["digest_sent"] == state["digest_received"]
    order = ["started_at", "detected_at", "quiesced_at", "spare_ready_at", "state_moved_at", "state_verified_at"]
    times = [phases[name] for name in [*order, "resumed_at"]]
    assert None not in times
    assert times == sorted(times)
