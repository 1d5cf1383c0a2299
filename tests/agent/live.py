"""A run that the test talks to while it trains."""

import os
import subprocess
import sys
import time
from pathlib import Path

from agent import control
from tests.agent.launch import EXAMPLE, ROOT, Outcome, environment, read, run_arguments
from tests.agent.zygote import launch

PAUSE = 0.05


class LiveRun:
    """Started at once; ended by `finish`, or killed at the end of the `with` block."""

    def __init__(
        self,
        folder: Path,
        *,
        steps: int,
        workers: int = 2,
        spares: int = 1,
        faults: str = "",
        options: tuple[str, ...] = (),
        variables: dict[str, str] | None = None,
        script: Path = EXAMPLE,
        arguments: tuple[str, ...] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.state = folder, folder / "state"
        line = run_arguments(folder, workers=workers, spares=spares, script=script, options=options)
        line += ["--steps", str(steps), "--out", str(folder / "result.json"), "--pause", str(PAUSE), *arguments]
        self._log = folder / "log"
        self._log.touch()
        self._process = launch(
            line, folder=ROOT, environment={**environment(faults), **(variables or {})}, output=self._log
        )

    def __enter__(self) -> "LiveRun":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def output(self) -> str:
        return self._log.read_text()

    def wait_until(self, text: str, timeout: float = 60) -> None:
        """Wait for a line of output."""
        deadline = time.monotonic() + timeout
        while text not in self.output:
            assert time.monotonic() < deadline, f"{text!r} did not come; output:\n{self.output}"
            time.sleep(0.02)

    def wait_for_training(self, timeout: float = 90) -> None:
        """Wait until a drain could begin: asks for a rank that is not there."""
        deadline = time.monotonic() + timeout
        probe = {"type": "drain", "ranks": [999], "kind": "planned", "signal": "operator", "notice": 1, "detail": {}}
        while True:
            try:
                if not control.ask(self.state, probe).get("again"):
                    return
            except (control.NoSuchRun, OSError):
                pass
            assert time.monotonic() < deadline, f"training does not begin; output:\n{self.output}"
            time.sleep(0.05)

    def drain(self, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """`agent drain` as an operator calls it."""
        self.wait_for_training()
        line = [sys.executable, "-m", "agent", "drain", self.folder.name, "--state-dir", str(self.state), *arguments]
        return subprocess.run(
            line, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=timeout, check=False
        )

    def children(self) -> list[int]:
        """Live children of the launcher: the coordinator, then workers and spares in the order of their start."""
        pid = self._process.pid
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        states = {int(child): Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0] for child in found}
        return [child for child, state in states.items() if state != "Z"]

    def signal(self, worker: int, number: int) -> None:
        """Signal a worker by the order of start; spares come after the workers, -1 is the coordinator."""
        os.kill(self.children()[1 + worker], number)

    def finish(self, timeout: float = 120) -> Outcome:
        """Wait for the end. A run that does not end fails the test."""
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run hangs; its output:\n{self.output}") from None
        return read(self.folder, status, self.output)
