"""The demo's training runs, started as a user starts them: `python -m agent run …`, as processes of their own."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

SCRIPT = "agent/examples/text_ddp.py"
WORKERS = 4
SPARES = 4
KEY_VARIABLE = "YOCO_AGENT_KEY"
POLL_S = 0.1
HEALTH_POLL_S = 0.2
DRAIN_TIMEOUT_S = 180


@dataclass(frozen=True, slots=True)
class Comparison:
    """One thing that two runs must have in common, bit for bit."""

    name: str
    with_fault: str
    without_fault: str

    @property
    def identical(self) -> bool:
        return self.with_fault == self.without_fault


class TrainingRun:
    """One run under the agent's launcher; its output goes to a log file."""

    def __init__(self, *, name: str, folder: Path, steps: int, seed: int) -> None:
        self.name = name
        self.folder = folder
        self.out = folder / f"{name}.json"
        self.log = folder / f"{name}.log"
        self.spool = folder / f"{name}-spool"
        self.state = folder / f"{name}-state"
        self._gpus = folder / f"{name}-gpus"
        self._steps = steps
        self._seed = seed
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        *,
        report_url: str | None = None,
        key: str | None = None,
        faults: str | None = None,
        step_s: float = 0.0,
    ) -> None:
        """Starts it; `faults` is the plan of agent/faults.py, e.g. a SIGKILL of rank 2 in backward of step 40.

        `step_s` makes every step last at least so long. Its GPUs are simulated, one for each worker and spare.
        """
        command = [sys.executable, "-m", "agent", "run", "--workers", str(WORKERS), "--spares", str(SPARES)]
        command += ["--run-id", self.name, "--state-dir", str(self.state)]
        command += ["--spool", str(self.spool)]
        self.gpus_write()
        command += ["--simulated-nvml", str(self._gpus), "--health-poll", str(HEALTH_POLL_S)]
        environment = dict(os.environ)
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        if report_url is not None and key is not None:
            command += ["--report-url", report_url, "--report-key-env", KEY_VARIABLE]
            environment[KEY_VARIABLE] = key
        if faults is not None:
            environment["YOCO_FAULTS"] = faults
        command += [SCRIPT, "--steps", str(self._steps), "--seed", str(self._seed), "--out", str(self.out)]
        command += ["--pause", str(step_s)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=settings.BASE_DIR, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def gpus_write(self, *, uncorrected: int | None = None) -> None:
        """Sets the readings of the simulated GPUs: all are well, but `uncorrected` has uncorrectable memory errors."""
        lines = [f"gpus {WORKERS + SPARES}"]
        lines += [f"{gpu}.ecc_volatile_uncorrected {int(gpu == uncorrected)}" for gpu in range(WORKERS + SPARES)]
        fresh = self._gpus.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.rename(self._gpus)

    def drain(self, *, rank: int) -> str:
        """Moves a rank as an operator does; returns what the command printed. Raises CommandError when it failed."""
        command = [sys.executable, "-m", "agent", "drain", self.name, "--state-dir", str(self.state)]
        done = subprocess.run(
            [*command, "--rank", str(rank)],
            cwd=settings.BASE_DIR,
            capture_output=True,
            text=True,
            timeout=DRAIN_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise CommandError(f"`agent drain` ended with status {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def wait_for_incident(self, kind: str, *, timeout_s: float) -> None:
        """Returns when the agent's own record says that an incident of this kind is over."""
        record = self.state / "incidents.jsonl"
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            lines = record.read_text().splitlines() if record.exists() else []
            if any(item["event"] == "resolved" and item["kind"] == kind for item in map(json.loads, lines)):
                return
            if not self.running:
                break
            time.sleep(POLL_S)
        raise CommandError(f"No {kind} incident was resolved in the run {self.name}; see {self.log}.")

    def finish(self, *, timeout_s: float) -> dict[str, Any]:
        """Waits for the end and returns what the script wrote. Raises CommandError when the run failed."""
        assert self._process is not None
        try:
            status = self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.stop()
            raise CommandError(f"The run {self.name} did not end within {timeout_s:.0f} s; see {self.log}.") from None
        if status != 0:
            tail = self.log.read_text(errors="replace")[-1200:]
            raise CommandError(f"The run {self.name} ended with status {status}; the end of {self.log}:\n{tail}")
        result: dict[str, Any] = json.loads(self.out.read_text())
        return result

    def stop(self) -> None:
        """Ends the launcher, which ends its workers."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def compare(with_fault: dict[str, Any], without_fault: dict[str, Any]) -> list[Comparison]:
    """Final parameters, optimizer state, RNG and the exact sequence of losses of two runs, each as a digest."""
    results = [
        {**run, f"{len(run['losses'])} losses": sha256(json.dumps(run["losses"]).encode()).hexdigest()[:32]}
        for run in (with_fault, without_fault)
    ]
    names = ["parameters", "optimizer", "rng", f"{len(with_fault['losses'])} losses"]
    return [
        Comparison(name=name, with_fault=results[0][name], without_fault=results[1].get(name, "missing"))
        for name in names
    ]
