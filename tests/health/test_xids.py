import csv
import time
from pathlib import Path
from threading import Thread

import pytest

from agent.health.kernel_log import KernelLog
from agent.health.xids import KernelXid, kernel_line_read, pci_address, triage_table


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "[66.1] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.",
            KernelXid(79, "0000:3b:00", "pid='<unknown>', GPU has fallen off the bus.", switch=False),
        ),
        ("NVRM: Xid (0000:03:00): 31, Ch 001", KernelXid(31, "0000:03:00", "Ch 001", switch=False)),
        ("Jan  5 kernel: NVRM: Xid (PCI:0009:01:00): 45", KernelXid(45, "0009:01:00", None, switch=False)),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore",
            KernelXid(28006, "0000:c1:00", "Non-fatal, Link 46 MC TS crumbstore", switch=True),
        ),
        ("NVRM: loading NVIDIA UNIX x86_64 Kernel Module", None),
        ("user wrote: Xid 79 is bad", None),
    ],
)
def test_it_reads_xids_in_kernel_lines(line, found):
    assert kernel_line_read(line) == found


def test_one_address_however_it_is_written():
    written = ["00000000:3B:00.0", "0000:3b:00", "0000:3b:00.0", "3B:00.0"]
    assert {pci_address(text) for text in written} == {"0000:3b:00"}


def test_the_table_is_whole():
    table = triage_table()
    path = Path(__file__).parents[2] / "agent" / "health" / "triage.csv"
    rows = list(csv.DictReader(path.open()))
    assert [int(row["xid"]) for row in rows] == sorted(table), "sorted, each code once"
    assert all(None not in row and all(row.values()) for row in rows)
    assert {triage.severity for triage in table.values()} == {"info", "warning", "critical"}
    assert {triage.advice for triage in table.values()} == {"migrate", "watch", "by_text"}
    assert all(triage.severity == "critical" for triage in table.values() if triage.advice == "migrate")
    assert {13, 31, 43, 45, 48, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140, 145, 154, 171, 172} <= set(table)


def test_a_log_file_is_followed_through_rotation_and_truncation(tmp_path):
    path = tmp_path / "kern.log"
    path.write_text("old\n")
    with KernelLog(path) as log:
        assert list(log.lines(0.0)) == []
        with path.open("a") as file:
            file.write("one\ntw")
            file.flush()
            assert list(log.lines(0.0)) == ["one"]
            file.write("o\n")
        assert list(log.lines(0.5)) == ["two"]
        path.rename(tmp_path / "kern.log.1")
        path.write_text("three\n")
        assert list(log.lines(0.5)) == ["three"]
        path.write_text("4\n")
        assert list(log.lines(0.5)) == ["4"]


def test_waiting_for_a_line_ends_with_the_line(tmp_path):
    path = tmp_path / "kern.log"
    path.touch()
    with KernelLog(path) as log:
        writer = Thread(target=lambda: (time.sleep(0.1), path.write_text("now\n")))
        writer.start()
        deadline, lines = time.monotonic() + 5, []
        while not lines and time.monotonic() < deadline:
            lines = list(log.lines(0.5))
        writer.join()
        assert lines == ["now"]


def test_the_devices_log_is_read_when_it_may_be():
    try:
        log = KernelLog(Path("/dev/kmsg"), from_start=True)
    except OSError as error:
        pytest.skip(f"/dev/kmsg cannot be read here: {error.strerror}")
    with log:
        lines = list(log.lines(0.0))
    assert all("\n" not in line for line in lines)
