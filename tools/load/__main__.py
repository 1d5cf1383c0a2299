"""Mixed traffic on the whole service, its database and its broker killed on the way; then everything is counted.

    .venv/bin/python -m tools.load [--minutes 15] [--agents 100] [--readers 5] [--tick 60] [--out build/load.json]

Bounded, loopback only. Exit status 1 if anything was lost or stored twice, if memory grew without bound, or if the
service ever answered 500; the reasons are printed last.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.load import people
from tools.load.measuring import JUDGED_FROM_S, Fault, Log, Memory, asked_read, kinds_table
from tools.load.receiver import receiving
from tools.load.stack import Stack, databases_ready, kill_and_start, serving
from tools.services import ServiceError, end_on_signals, scratch_directory

if TYPE_CHECKING:
    from tools.load.tenants import Tenants

ROOT = Path(__file__).resolve().parent.parent.parent
REQUEST_COLUMNS = {
    "requests": "requests", "errors": "errors", "requests_in_faults": "in faults", "errors_in_faults": "errors",
    "p50_ms": "p50 ms", "p95_ms": "p95 ms", "p99_ms": "p99 ms", "longest_ms": "longest",
}  # fmt: skip
MEMORY_COLUMNS = {
    "first_mib": "first", "middle_mib": "middle", "last_mib": "last", "highest_mib": "highest",
    "slope_mib_per_hour": "per hour", "processes": "pids",
}  # fmt: skip
SETTLED_S = 300.0  # after the traffic: until every credit is applied and every message delivered


@contextmanager
def doing(stop: threading.Event, jobs: Sequence[Callable[[], None]]) -> Iterator[None]:
    """Runs each in a thread of its own until the block ends."""
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(90)


def agents_start(stack: Stack, directory: Path, keys: list[str], options: argparse.Namespace) -> subprocess.Popen[str]:
    """The process of all agents. It is ready when this returns, and beats until the time in its plan."""
    plan = {
        "url": stack.url,
        "spools": str(directory / "spools"),
        "until": time.time() + options.seconds + 0.05 * options.agents,
        "pause_s": options.pause,
        "agents": [{"key": key} for key, _ in zip(itertools.cycle(keys), range(options.agents))],
    }
    (directory / "spools").mkdir()
    (directory / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, "-m", "tools.load.agents", str(directory / "plan.json"), str(directory / "agents.json")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise ServiceError("the process of the agents did not start")
    return process


def contracts_end(tenants: Tenants, stop: threading.Event, every_s: float) -> None:
    """Now and then a contract year is over; the next tick closes it."""
    from tools.load.tenants import contract_over_try

    for customer in itertools.cycle(tenants.customers):
        if stop.wait(every_s):
            return
        while not contract_over_try(tenants, customer):
            time.sleep(1)


def faults_make(stack: Stack, seconds: float, faults: list[Fault], stop: threading.Event) -> None:
    """Redis is killed after a third of the run and PostgreSQL after a half; each is away for some seconds."""
    down_s = min(5.0, seconds / 15)
    for server, wait in ((stack.redis, seconds / 3), (stack.postgres, seconds / 6)):
        if stop.wait(wait):
            return
        faults.append(kill_and_start(stack, server, down_s))


def traffic(stack: Stack, tenants: Tenants, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All of it at once, then the wait until everything has arrived. What was measured."""
    from django.db import connections

    from tools.load.counting import waiting

    log, memory, faults = Log(), Memory(stack.servers), list[Fault]()
    readers_stop, stop = threading.Event(), threading.Event()
    agents = agents_start(stack, directory, [customer.key for customer in tenants.customers], options)
    began = time.time()

    def person(email: str) -> people.Person:
        return people.Person(stack.url, email, options.password, log)

    readers = [user.email for user in (*(c.owner for c in tenants.customers), *tenants.managers)]
    reading: list[Callable[[], None]] = [
        partial(people.read, person(email), readers_stop, options.think)
        for email in itertools.islice(itertools.cycle(readers), options.readers)
    ]
    reading.append(partial(contracts_end, tenants, readers_stop, options.contract_every))
    reading.append(partial(faults_make, stack, options.seconds, faults, readers_stop))
    settling: list[Callable[[], None]] = [
        partial(people.settle, person(user.email), stop, options.think, steps)
        for user, steps in zip(tenants.managers, ("issue", "approve|apply"), strict=True)
    ]
    with doing(stop, settling):
        with doing(readers_stop, reading):
            while time.time() < began + options.seconds:
                memory.sample()
                time.sleep(min(5.0, options.seconds / 30))
        ended = time.time()
        print("the traffic is over", flush=True)
        agents.wait(400)
        print(f"the agents have reported everything {time.time() - ended:.0f} s later", flush=True)
        connections.close_all()  # the server that this thread was connected to is gone
        settled = settled_wait(lambda: waiting(tenants))
    told = json.loads((directory / "agents.json").read_text())
    asked = [*log.asked, *asked_read(directory / "agents.json")]
    return {
        "agents": told["agents"],
        "requests": kinds_table(asked, faults),
        "per_second": round(len(asked) / (ended - began), 1),
        "faults": [fault._asdict() | {"down_s": round(fault.ready_at - fault.killed_at, 1)} for fault in faults],
        "restarts": dict(stack.restarts),
        "memory": memory.table(began=began, ended=ended),
        "memory_judged": options.seconds >= JUDGED_FROM_S,
        "settled_after_s": round(time.time() - ended, 1) if settled else None,
        "errors": dict(Counter(f"{one.kind}: {one.error}" for one in asked if one.error).most_common()),
    }


def settled_wait(waiting: Callable[[], dict[str, int]]) -> bool:
    """Waits until nothing is on its way any more. False if that takes too long; then it has said what is left."""
    deadline, said = time.time() + SETTLED_S, time.time()
    while any((left := waiting()).values()):
        if time.time() > deadline:
            return False
        if time.time() > said + 15:
            said = time.time()
            print("still on its way:", left, flush=True)
        time.sleep(1)
    return True


def judged(measured: dict[str, Any]) -> list[str]:
    """What of the measured is not as it should be."""
    problems = []
    # That something is away or slow is answered by 503, or by nothing in time. Anything else is a fault of ours.
    problems += [f"answered 500: {error}" for error in measured["errors"] if re.search(r"\b500\b", error)]
    if len(measured["faults"]) != 2:
        problems.append("not both servers were killed and started again")
    if measured["settled_after_s"] is None:
        problems.append(f"not everything was done {SETTLED_S:g} s after the traffic")
    if measured["memory_judged"]:
        unbounded = [name for name, row in measured["memory"].items() if not row["bounded"]]
        problems += [f"the memory of {name} grows" for name in unbounded]
    return problems


def table_print(title: str, columns: dict[str, str], rows: dict[str, dict[str, Any]]) -> None:
    print(f"\n{title:22}" + "".join(f"{head:>11}" for head in columns.values()))
    for name, row in rows.items():
        print(f"{name:22}" + "".join(f"{row[column]!s:>11}" for column in columns))


def result_print(result: dict[str, Any]) -> None:
    table_print("kind of request", REQUEST_COLUMNS, result["requests"])
    print(f"{result['per_second']} requests a second; milliseconds are of requests outside the faults")
    for fault in result["faults"]:
        print(f"{fault['server']} was killed and away for {fault['down_s']} s")
    for name, number in result["restarts"].items():
        print(f"{name} ended by itself and was started again, as its restart policy has it: {number}")
    table_print("memory, MiB", MEMORY_COLUMNS, result["memory"])
    print("\ncounted:", *(f"{key} {n}" for part in result["counted"].values() for key, n in part.items()), sep="\n  ")
    print("\nerrors met:", *(f"{n} {error}" for error, n in result["errors"].items()), sep="\n  ")
    print("", *(f"FAILED: {problem}" for problem in result["problems"]), sep="\n")
    if not result["problems"]:
        print("nothing lost, nothing double")


def run(options: argparse.Namespace) -> int:
    began, load_average = time.time(), os.getloadavg()
    dot_env = {
        "WEBHOOK_ALLOW_HTTP": "true",
        "WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8",
        "TICK_SECONDS": f"{options.tick:g}",
        "EMAIL_URL": "dummymail://",
        # What was in the hands of a killed worker or database is free again after twice, and eight times, as long.
        "WEBHOOK_TIMEOUT": "5",
        "EMAIL_TIMEOUT": "2",
    }
    with scratch_directory() as directory, receiving() as receiver, databases_ready(directory, **dot_env) as stack:
        os.environ |= stack.environment | {"DJANGO_SETTINGS_MODULE": "yoco.settings"}
        import django

        django.setup()
        from tools.load import counting, tenants

        made = tenants.tenants_make(receiver)
        options.password = tenants.PASSWORD
        with serving(stack):
            print(f"ready after {time.time() - began:.0f} s; {options.seconds:g} s of traffic", flush=True)
            measured = traffic(stack, made, directory, options)
            problems: list[str] = []
            counted = {
                "reports": counting.reports_count(measured["agents"], problems),
                "books": counting.books_count(made, problems),
                "messages": counting.messages_count(receiver, problems),
            }
            problems += [f"{s.name} is gone: {s.last_words()}" for s in stack.servers if not s.running()]
        problems += judged(measured)
        logs = options.out.with_suffix("")
        logs.mkdir(parents=True, exist_ok=True)
        for server in stack.servers:
            shutil.copyfile(server.log, logs / server.log.name)
    result = {key: value for key, value in measured.items() if key != "agents"} | {
        "seconds": options.seconds,
        "agents": options.agents,
        "readers": options.readers,
        "cores": os.cpu_count(),
        "load_average": {"at_start": load_average, "at_end": os.getloadavg()},
        "machine": platform.platform(),
        "counted": counted,
        "problems": problems,
    }
    result_print(result)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if problems else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.load", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--readers", type=int, default=5, help="people who read; two account managers come besides")
    parser.add_argument("--pause", type=float, default=30.0, help="seconds between two incidents of a job")
    parser.add_argument("--think", type=float, default=1.0, help="seconds between two pages of a person")
    parser.add_argument("--contract-every", type=float, default=30.0, help="seconds until the next year is over")
    parser.add_argument("--tick", type=float, default=60.0, help="TICK_SECONDS of the service")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "load.json")
    options = parser.parse_args(arguments)
    options.seconds = options.minutes * 60
    end_on_signals()
    try:
        return run(options)
    except ServiceError as error:
        print(f"load: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
