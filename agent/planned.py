"""`agent drain`, and the signal by which a scheduler asks a process to leave."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from agent import control
from agent.wire import Message

POLL_SECONDS = 0.2
SILENT_SECONDS = 3.0
"""A coordinator that answers nothing for so long is gone with its run; a restarted one answers sooner."""
LATE_SECONDS = 60.0
"""How long after its notice a drain may still be under way before the command stops waiting."""


def add_commands(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `drain`; it sets `command`, a function from the arguments to an exit status."""
    drain = subparsers.add_parser(
        "drain",
        help="move ranks off a worker or a node while training goes on",
        description="Moves a rank (or all ranks of a node) to spares: the state is copied while training goes on, "
        "then training pauses shortly. Exit status 0 when moved, 1 when not, 2 when refused.",
    )
    drain.add_argument("run", metavar="RUN", help="the run's --run-id")
    place = drain.add_mutually_exclusive_group(required=True)
    place.add_argument("--rank", type=int, action="append", help="the logical rank to move (may be repeated)")
    place.add_argument("--node", help="the node to leave, as reports name it; its spares are not used any more")
    drain.add_argument("--state-dir", type=Path, help="the run's state directory (default build/agent/RUN)")
    drain.add_argument(
        "--notice",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="until the place must be free (60); the state is copied ahead for half of it, "
        "with less than 5 seconds training stops for the copy",
    )
    drain.add_argument("--mode", choices=["follow", "stop-and-copy"], default="follow", help="(follow)")
    drain.add_argument("--no-wait", action="store_true", help="return once the coordinator has accepted")
    drain.set_defaults(command=_drain_run)


def _drain_run(options: argparse.Namespace) -> int:
    folder: Path = options.state_dir or Path("build/agent") / options.run
    request: Message = {
        "type": "drain",
        "kind": "planned",
        "signal": "operator",
        "notice": options.notice,
        "mode": options.mode,
        "detail": {
            "how": "agent drain",
            "by": _user(),
            "host": socket.gethostname(),
            "notice_seconds": options.notice,
            "mode": options.mode,
        },
        **({"node": options.node} if options.node else {"ranks": options.rank}),
    }
    deadline = time.monotonic() + options.notice
    try:
        answer = control.ask(folder, request)
        while answer.get("again") and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            answer = control.ask(folder, request)
    except (control.NoSuchRun, OSError) as error:
        print(f"agent: run {options.run} cannot be asked: {error}", file=sys.stderr)
        return 2
    if answer["type"] != "accepted":
        print(f"agent: refused: {answer.get('reason', 'the coordinator does not know this request')}", file=sys.stderr)
        return 2
    if options.no_wait:
        print(f"accepted: {len(answer['incidents'])} rank(s) will move")
        return 0
    return _follow(folder, answer, deadline + LATE_SECONDS)


def _follow(folder: Path, accepted: Message, deadline: float) -> int:
    """Tell each stage as it is reached, until the end."""
    told: dict[int, str] = {}
    answered = time.monotonic()
    while time.monotonic() < deadline:
        try:
            status = control.ask(folder, {"type": "drain_status", "incidents": accepted["incidents"]})
            answered = time.monotonic()
        except (control.NoSuchRun, OSError):
            if time.monotonic() - answered > SILENT_SECONDS:
                return _outcome_from_disk(folder, accepted["incidents"])
            time.sleep(POLL_SECONDS)
            continue
        for drain in status["drains"]:
            if told.get(drain["rank"]) != drain["stage"]:
                told[drain["rank"]] = drain["stage"]
                print(f"rank {drain['rank']}: {drain['stage']}{drain['reason'] and ': ' + drain['reason']}", flush=True)
        if status["over"]:
            return 0 if all(drain["stage"] == "done" for drain in status["drains"]) else 1
        time.sleep(POLL_SECONDS)
    print("agent: the move has not ended in time; the coordinator goes on with it", file=sys.stderr)
    return 1


def _outcome_from_disk(folder: Path, incidents: list[str]) -> int:
    """The run ended meanwhile: what its record says."""
    with contextlib.suppress(OSError):
        lines = (folder / "incidents.jsonl").read_text().splitlines()
        last: dict[str, Any] = {record["incident_id"]: record for record in map(json.loads, lines)}
        found = [last.get(incident, {}) for incident in incidents]
        if all(each.get("resolution") == "live_migration" and each["kind"] == "planned" for each in found):
            print("done; the run has ended")
            return 0
    print("agent: the run ended before the move was done", file=sys.stderr)
    return 1


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def on_sigterm(leave: Callable[[], None]) -> None:
    """Call `leave` at the first SIGTERM; a second one ends the process. Main thread only."""

    def first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        leave()

    signal.signal(signal.SIGTERM, first)


def sigterm_request(notice: float) -> Message:
    """What a process that got SIGTERM asks of the coordinator."""
    detail = {"how": "SIGTERM", "host": socket.gethostname(), "notice_seconds": notice}
    return {"kind": "planned", "signal": "operator", "notice": notice, "detail": detail}
