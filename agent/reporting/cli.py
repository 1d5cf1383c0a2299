"""`agent spool status DIR` and `agent spool flush DIR`.

Look into a spool, and empty one whose agent is gone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from agent.reporting.boot import Boot, boot_lock
from agent.reporting.client import ServiceClient
from agent.reporting.sender import Sender
from agent.reporting.spool import boot_directories


def spool_status(root: Path) -> list[dict[str, Any]]:
    """One row per boot.

    Who wrote it, whether that process lives, and what the service has answered so far.
    """
    rows = []
    for directory in boot_directories(root):
        lock_descriptor = boot_lock(directory)
        if lock_descriptor is not None:
            os.close(lock_descriptor)
        boot = Boot.read(directory, lock_descriptor=None)
        rows.append(
            {
                "boot_id": boot.boot_id,
                "agent_id": boot.agent_id,
                "running": lock_descriptor is None,
                "reports": len(boot.reports),
                "waiting": len(boot.pending) + len(boot.runs_ended_pending),
                "short": len(boot.short & boot.pending),
                "answers": dict(Counter(answer["status"] for answer in boot.answers.values())),
                "damaged_bytes": boot.damaged,
                "bytes": sum(segment.size for segment in boot.segments),
            }
        )
    return rows


def spool_flush(root: Path, *, url: str, key: str | None, timeout_s: float) -> tuple[bool, str]:
    """Send what dead agents left in the spool: (all sent, one sentence about it)."""
    sender = Sender(root=root, live=None, client=ServiceClient(url=url, key=key))
    sender.start()
    flushed = sender.flush(timeout_s)
    sender.stop(timeout_s=15.0)
    rows = spool_status(root)
    running = sum(row["waiting"] for row in rows if row["running"])
    if running:
        return False, f"{running} report(s) belong to a running agent, which sends them itself."
    if flushed:
        return True, "Everything in the spool has been answered by the service."
    waiting = sum(row["waiting"] for row in rows)
    return False, f"{waiting} report(s) are still waiting. {sender.complaint or 'Try a longer --timeout.'}"


def add_commands(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `spool`; each sets `command`, a function from the arguments to an exit status."""
    spool = subparsers.add_parser("spool", help="look into the spool of reports, or send what is left in it")
    verbs = spool.add_subparsers(dest="verb", required=True)
    status = verbs.add_parser("status", help="what is in the spool, and what the service answered")
    status.add_argument("dir", type=Path, metavar="DIR", help="the spool's directory")
    status.add_argument("--json", action="store_true", help="print JSON, one object per boot")
    status.set_defaults(command=_status_run)
    flush = verbs.add_parser("flush", help="send what an agent that is gone has left in the spool")
    flush.add_argument("dir", type=Path, metavar="DIR", help="the spool's directory")
    flush.add_argument("--url", required=True, help="root of the service, such as https://yoco.example")
    flush.add_argument("--key-env", metavar="NAME", help="environment variable that holds the agent key")
    flush.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="give up after (60)")
    flush.set_defaults(command=_flush_run)


def _status_run(arguments: argparse.Namespace) -> int:
    if not _is_spool(arguments.dir):
        return 2
    rows = spool_status(arguments.dir)
    if arguments.json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        answers = ", ".join(f"{count} {status}" for status, count in sorted(row["answers"].items())) or "none"
        print(
            f"boot {row['boot_id']} of {row['agent_id']} ({'running' if row['running'] else 'ended'}): "
            f"{row['reports']} reports, {row['waiting']} waiting, {row['short']} short; answers: {answers}; "
            f"{row['damaged_bytes']} damaged bytes"
        )
    print(f"{len(rows)} boot(s), {sum(row['waiting'] for row in rows)} report(s) waiting")
    return 0


def _flush_run(arguments: argparse.Namespace) -> int:
    if not _is_spool(arguments.dir):
        return 2
    key = None
    if arguments.key_env is not None:
        key = os.environ.get(arguments.key_env)
        if not key:
            print(f"The environment variable {arguments.key_env} holds no key; set it.", file=sys.stderr)
            return 2
    flushed, sentence = spool_flush(arguments.dir, url=arguments.url, key=key, timeout_s=arguments.timeout)
    print(sentence, file=sys.stdout if flushed else sys.stderr)
    return 0 if flushed else 1


def _is_spool(root: Path) -> bool:
    if (root / "boots").is_dir():
        return True
    print(f"{root} is no spool: it has no folder `boots`. Give the agent's --spool directory.", file=sys.stderr)
    return False
