"""A short run of `make load`: the whole stack, its broker and its database killed, and everything counted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services import ROOT

pytestmark = [pytest.mark.postgres, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(400)]
SHORT = ["--minutes=0.5", "--agents=5", "--readers=2", "--pause=4", "--think=0.5", "--contract-every=5", "--tick=1"]


def test_half_a_minute_of_mixed_traffic_loses_nothing(tmp_path: Path) -> None:
    out = tmp_path / "load.json"
    command = [sys.executable, "-m", "tools.load", *SHORT, f"--out={out}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=390)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    result = json.loads(out.read_text())
    assert result["problems"] == []
    # The run was not an idle one: everybody did something, and both servers were away.
    assert {fault["server"] for fault in result["faults"]} == {"redis", "postgres"}
    assert {"agent reports", "agent heartbeats", "portal: year", "desk: step"} <= result["requests"].keys()
    assert result["requests"]["all"]["errors_in_faults"] > 0
    assert result["counted"]["reports"]["sent"] >= 20
    assert result["counted"]["books"]["contracts"] >= 7
    assert result["counted"]["messages"]["webhook_events"] >= 6 * result["counted"]["books"]["contracts"]
    assert {"web.1", "worker", "beat", "redis", "postgres"} <= result["memory"].keys()
