"""`import_incidents` of a kernel log of a million lines: how long, and whether memory stays flat."""

from __future__ import annotations

import datetime
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

from tools.bench.database import cluster, database_copy, django_connect
from tools.bench.registry import Bench, Goal, Reading
from tools.services import scratch_directory

KEY = "service.import_million_lines_s"
LINES = 1_000_000
RUNS = 5
ROOT = Path(__file__).resolve().parent.parent.parent
FLAT_MIB = 64  # how much more a million lines may need than a tenth of them

EVENTS_EACH = 1000  # lines between two failures; a storm of one XID repeats itself for a tenth of them
START = datetime.datetime(2026, 9, 1, tzinfo=datetime.UTC)


def measure(_wanted: Set[str]) -> Iterator[Reading]:
    """Every run imports into a database of its own, after a shorter log that shows what memory grows with."""
    with cluster() as server, scratch_directory() as directory:
        long, short = directory / "kernel.log", directory / "short.log"
        log_write(long, LINES)
        log_write(short, LINES // 10)
        seconds, peaks, small = [], [], []
        for _ in range(RUNS):
            url = database_copy(server)
            django_connect(url)
            from tools.bench.tenants import tenants_make

            numbers = [tenant.contract.number for tenant in tenants_make(2)]
            small.append(_import(short, numbers[0], url).mebibytes)
            done = _import(long, numbers[1], url)
            seconds.append(done.seconds)
            peaks.append(done.mebibytes)
            incidents = _incidents(numbers[1])
        growth = max(peaks) - min(small)
        yield Reading(
            KEY,
            seconds,
            checks=(
                (f"{growth} MiB more than for a tenth of the lines (<= {FLAT_MIB})", growth <= FLAT_MIB),
                (f"{incidents} incidents from {LINES} lines", 0 < incidents <= LINES // EVENTS_EACH),
            ),
            notes=(f"peak memory {max(peaks)} MiB, for a tenth of the lines {max(small)} MiB",),
        )


def log_write(path: Path, lines: int) -> None:
    """A log as `journalctl -o short-iso-precise` prints it: few XIDs among other messages, some in storms."""
    rng = random.Random(6)  # noqa: S311 (invented data, the same in every run)
    at = START
    with path.open("w", encoding="ascii") as file:
        for number in range(lines):
            at += datetime.timedelta(milliseconds=rng.randint(500, 3000))
            event, within = divmod(number, EVENTS_EACH)
            node = f"gpu-{event % 64:03d}"
            if within == 0 or (event % 5 == 0 and within < EVENTS_EACH // 10):
                xid = (79, 94, 48, 119)[event % 4]
                text = f"NVRM: Xid (PCI:0000:{event % 8:02x}:00): {xid}, pid={1000 + within}, name=python, Ch 00000008"
            else:
                text = f"nfs: server store-{within % 4} not responding, still trying"
            file.write(f"{at.isoformat(timespec='microseconds')} {node} kernel: {text}\n")


@dataclass(frozen=True, slots=True)
class Imported:
    seconds: float
    mebibytes: int


def _import(path: Path, contract: str, url: str) -> Imported:
    command = [
        sys.executable, str(ROOT / "manage.py"), "import_incidents", str(path), "--contract", contract,
        "--format", "dmesg", "--set", "run_id=pretraining", "--set", "gpus=512",
    ]  # fmt: skip
    environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "yoco.settings"}
    began = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    output = process.stdout.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"import_incidents ended with status {process.returncode}: {output[-500:]}")
    return Imported(time.perf_counter() - began, usage.ru_maxrss // 1024)


def _incidents(contract: str) -> int:
    from yoco.incidents.models import Incident

    return Incident.objects.filter(contract__number=contract).count()


BENCH = Bench((Goal(KEY, "seconds to import a kernel log of 1,000,000 lines", "s", "<= 60"),), measure)
