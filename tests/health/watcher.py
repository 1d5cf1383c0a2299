"""A health monitor in a process of its own, with windows short enough for a test.

    python -m tests.health.watcher KERNEL_LOG

Prints `started true|false`, then each verdict as a JSON line, until its standard input closes.
"""

import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path

from agent.health import HealthMonitor, HealthPolicy

POLICY = HealthPolicy(ecc_window_s=1.5, hold_s=0.3, clear_s=0.3, link_window_s=1.0, xid_repeat_s=60.0)

logging.basicConfig(format="%(message)s")


def show(verdict):
    print(json.dumps(asdict(verdict), default=str), flush=True)


monitor = HealthMonitor(POLICY, show, kernel_log=Path(sys.argv[1]), poll_s=0.05)
print("started", json.dumps(monitor.start()), flush=True)
sys.stdin.read()
monitor.stop()
