"""`manage.py import_incidents`: the operators' own records, with local times, broken lines and second runs."""

import csv
import datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tests.people import World
from yoco.incidents.models import AgentBoot, Incident, RawReport

# Local times around the changes of 2025 in Denver (9 March 2:00 → 3:00, 2 November 2:00 → 1:00), with the true minutes.
OUTAGES = """id,host,began,fixed,minutes
1,n1,3/8/2025 23:30,3/9/2025 4:30,240
2,n2,3/9/2025 1:59,3/9/2025 3:01,2
3,n3,11/1/2025 12:00,11/2/2025 12:00,1500
4,n4,11/2/2025 0:16,11/2/2025 2:35,199
5,n5,10/1/2025 8:00,12/1/2025 9:00,87960
6,n6,6/1/2025 8:00,6/1/2025 9:00,60
7,n7,11/2/2025 0:30,11/2/2025 1:10,100
8,n8,11/2/2025 1:36,11/2/2025 5:27,231
9,n9,3/9/2025 2:30,3/9/2025 4:00,0
"""
OUTAGE_OPTIONS = {
    "format": "csv",
    "time_zone": "America/Denver",
    "time_format": "%m/%d/%Y %H:%M",
    "map": ["external_id=id", "node=host", "started_at=began", "resumed_at=fixed"],
    "set": ["gpus=8", "run_id=cluster", "signal=power", "resolution=checkpoint_restart"],
}


def run(path: Path, text: str | bytes, **options: Any) -> tuple[str, str | None]:
    """The output, and the error that ended it."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    out = StringIO()
    try:
        call_command("import_incidents", str(path), contract="ACME-1", stdout=out, **options)
    except CommandError as error:
        return out.getvalue(), f"{error.returncode}: {error}"
    return out.getvalue(), None


def rejects(path: Path) -> list[dict[str, str]]:
    with path.with_name(path.name + ".rejects.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records"


def minutes() -> dict[str, float]:
    return {
        row.node: (row.resumed_at - row.started_at) / datetime.timedelta(minutes=1)
        for row in Incident.objects.all()
        if row.resumed_at
    }


def truth() -> dict[str, float]:
    return {row["host"]: float(row["minutes"]) for row in csv.DictReader(StringIO(OUTAGES))}


def test_local_times_are_right_and_what_is_ambiguous_is_refused(world: World, path: Path) -> None:
    out, error = run(path, OUTAGES, **OUTAGE_OPTIONS)
    assert out == "6 incidents imported, 0 known already\n"
    assert error is not None
    assert error.startswith("1: 3 lines were rejected")
    assert minutes() == {node: value for node, value in truth().items() if node not in ("n7", "n8", "n9")}
    assert [(row["line"], row["reason"].split(":")[0]) for row in rejects(path)] == [
        ("8", "11/2/2025 1"),
        ("9", "11/2/2025 1"),
        ("10", "3/9/2025 2"),
    ]
    assert "came twice" in rejects(path)[0]["reason"]
    assert "does not exist" in rejects(path)[2]["reason"]
    assert Incident.objects.values_list("origin", flat=True).distinct().get() == "import"
    assert not AgentBoot.objects.exists()


def test_rejects_of_an_earlier_run_do_not_stay(world: World, path: Path) -> None:
    run(path, OUTAGES, **OUTAGE_OPTIONS)
    assert len(rejects(path)) == 3
    run(path, OUTAGES.rsplit("\n", 4)[0] + "\n", **OUTAGE_OPTIONS)
    assert not path.with_name(path.name + ".rejects.csv").exists()


def test_a_preview_refuses_what_the_import_refuses(world: World, path: Path) -> None:
    first, second = OUTAGES.split("\n", 2)[:2]
    text = f"{first},note\n{second},{'x' * 70_000}\n"
    options = OUTAGE_OPTIONS | {"map": [*OUTAGE_OPTIONS["map"], "name=note"]}
    previewed, preview_error = run(path, text, dry_run=True, **options)
    assert "1: 1 lines were rejected" in str(preview_error), previewed
    assert run(path, text, **options)[1] == preview_error


def test_a_fold_resolves_the_repeated_hour(world: World, path: Path) -> None:
    run(path, OUTAGES, fold=1, **OUTAGE_OPTIONS)
    assert minutes() == {node: value for node, value in truth().items() if node != "n9"}


def test_a_second_run_changes_nothing_and_a_changed_row_amends(world: World, path: Path) -> None:
    run(path, OUTAGES, **OUTAGE_OPTIONS)
    out, _ = run(path, OUTAGES, **OUTAGE_OPTIONS)
    assert out == "0 incidents imported, 6 known already\n"
    longer = OUTAGES.replace("6/1/2025 9:00,60", "6/1/2025 10:00,120")
    out, _ = run(path, longer, **OUTAGE_OPTIONS)
    assert out == "1 incidents imported, 5 known already\n"
    assert Incident.objects.count() == 6
    assert minutes()["n6"] == 120


def test_a_dry_run_says_the_same_and_writes_nothing(world: World, path: Path) -> None:
    out, error = run(path, OUTAGES, dry_run=True, **OUTAGE_OPTIONS)
    assert "line 2: 2025-03-09T06:30:00Z n1 → created" in out
    assert "6 incidents would be imported, 0 known already" in out
    assert error is not None
    assert not RawReport.objects.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"time_zone": None}, "1: 9 lines were rejected"),
        ({"time_zone": "Mars/Olympus"}, "2: “Mars/Olympus” is no IANA time zone"),
        ({"map": ["began=started_at"]}, "2: There is no field “began”"),
        ({"map": ["started_at=when"]}, "2: The file has no column “when”. Columns: id, host"),
        ({"map": [], "set": []}, "2: No column holds “started_at”"),
        ({"map": ["started_at"]}, "2: --map takes NAME=VALUE"),
        ({"format": "sacct"}, "2: The first line does not name JobID, State, End"),
        ({"format": "dmesg", "set": []}, "2: A kernel log does not know the workload"),
    ],
)
def test_wrong_use_says_what_to_do(world: World, path: Path, changes: dict[str, Any], message: str) -> None:
    _, error = run(path, OUTAGES, **{**OUTAGE_OPTIONS, **changes})
    assert error is not None
    assert error.startswith(message), error
    assert not Incident.objects.exists()


def test_an_unknown_contract_or_file(world: World, tmp_path: Path) -> None:
    for contract, message in (("NONE", "There is no contract"), ("ACME-1", "No such file")):
        with pytest.raises(CommandError, match=message) as raised:
            call_command("import_incidents", str(tmp_path / "nothing"), contract=contract, format="csv")
        assert raised.value.returncode == 2


def test_broken_csv_rows_are_rejected_with_their_numbers(world: World, path: Path) -> None:
    text = (
        b"started_at,run_id,gpus,node,checkpoint_loaded\n"
        b"2025-06-01T08:00:00Z,r,8,n1,no\n"
        b"2025-06-01T08:00:00Z,r,8\n"
        b"2025-06-01T08:00:00Z,r,many,n1,no\n"
        b"2025-06-01T08:00:00Z,,8,n1,no\n"
        b"yesterday,r,8,n1,no\n"
        b"2025-06-01T08:00:00Z,r,8,caf\xe9,perhaps\n"
        b'2025-06-01T08:00:00Z,r,8,"n1"x,no\n'
        b"2025-06-01T08:00:00Z,r,2000000000,n1,no\n"
        b"9999-12-31T23:59:59-12:00,r,8,n1,no\n"
        b"2025-06-02T08:00:00Z,r,8,n2,no\n"
    )
    out, _ = run(path, text, format="csv")
    assert out == "2 incidents imported, 0 known already\n"
    assert sorted(int(row["line"]) for row in rejects(path)) == [3, 4, 5, 6, 7, 8, 9, 10]
    assert all(row["reason"] for row in rejects(path))


SACCT = """JobID|JobName|State|Start|End|AllocNodes|AllocTRES|NodeList
501|train|NODE_FAIL|2025-11-01T22:00:00|2025-11-02T03:10:00|4|billing=8,cpu=64,gres/gpu=32,node=4|node[01-04]
501.batch|batch|CANCELLED|2025-11-01T22:00:00|2025-11-02T03:10:00|1||node01
501.extern|extern|COMPLETED|2025-11-01T22:00:00|2025-11-02T03:10:02|4||node[01-04]
501.0|python|FAILED|2025-11-01T22:00:00|2025-11-02T03:10:40|4||node[01-04]
502_7|array|FAILED|2025-11-01T22:00:00|2025-11-01T23:59:38|1|gres/gpu=8|node09
502_8|array|CANCELLED by 1000|2025-11-01T22:00:00|2025-11-01T23:59:38|1|gres/gpu=8|node09
503|one|NODE_FAIL|2025-11-01T22:00:00|2025-11-01T23:00:00|1|cpu=4|node11
504|two|NODE_FAIL|2025-11-01T22:00:00|Unknown|1|gres/gpu:h200=8|node12
505|three|NODE_FAIL|2025-11-01T22:00:00|2025-11-01T23:00:00|1|gres/gpu:h200=8|node13
half a line|
x506|odd|NODE_FAIL|2025-11-01T22:00:00|2025-11-01T23:00:00|1|gres/gpu=8|node14
507|odd|EXPLODED|2025-11-01T22:00:00|2025-11-01T23:00:00|1|gres/gpu=8|node14
"""


def test_slurm_jobs_are_counted_once_and_a_failed_job_is_no_failure_of_the_infrastructure(
    world: World, path: Path
) -> None:
    out, _ = run(path, SACCT, format="sacct", time_zone="America/Denver")
    assert out.splitlines() == [
        "2 incidents imported, 0 known already",
        "3 job steps",
        "1 jobs CANCELLED",
        "1 jobs FAILED",
    ]
    big = Incident.objects.get(run__run_id="slurm-501")
    assert (big.gpus, big.gpus_per_node, big.node, big.resolution) == (32, 8, "", "abandoned")
    assert big.started_at == datetime.datetime(2025, 11, 2, 10, 10, tzinfo=datetime.UTC)
    assert Incident.objects.get(run__run_id="slurm-505").node == "node13"
    assert [(row["line"], row["reason"][:20]) for row in rejects(path)] == [
        ("8", "The row does not say"),
        ("9", "“Unknown” is not a t"),
        ("11", "The header has 8 fie"),
        ("12", "“x506” is no job id."),
        ("13", "“EXPLODED” is no job"),
    ]


CASCADE = """[ 101.000001] usb 1-1: new high-speed USB device
[  612.548768] NVRM: GPU at PCI:0000:91:00: GPU-5a7e
[  612.548779] NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[  624.400584] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up
[  624.404587] nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 63 LTSSM Fault Up
[  624.404848] nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, Severity 1 Engine instance 60
"""
LOG_OPTIONS = {"format": "dmesg", "set": ["run_id=pretraining", "gpus=64", "node=node-3"]}


def test_a_cascade_is_one_incident_named_after_its_root(world: World, path: Path) -> None:
    out, error = run(path, CASCADE, boot_time="2025-10-01T00:00:00+02:00", **LOG_OPTIONS)
    assert (out.splitlines()[0], error) == ("1 incidents imported, 0 known already", None)
    incident = Incident.objects.get()
    assert (incident.signal, incident.xid, incident.node, incident.state) == ("xid", 79, "node-3", "open")
    assert incident.trigger_detail["codes"] == {"sxid:20034": 3, "xid:79": 1}
    assert incident.started_at == datetime.datetime(2025, 9, 30, 22, 10, 12, 548779, tzinfo=datetime.UTC)
    assert incident.root_event is not None
    assert incident.root_event.cause == "xid:79"


def test_times_since_boot_need_the_boot(world: World, path: Path) -> None:
    _, error = run(path, CASCADE, **LOG_OPTIONS)
    assert error is not None
    assert rejects(path)[0]["reason"] == "The time counts from the start of the machine; say when that was."


def test_repetitions_are_one_event_each_and_application_errors_none(world: World, path: Path) -> None:
    start = datetime.datetime(2025, 10, 1, tzinfo=datetime.UTC)
    lines = []
    for burst in range(5):
        for tick in range(200):
            at = start + datetime.timedelta(hours=burst, seconds=tick / 4)
            lines.append(f"{at.isoformat()} gpu-{burst % 2} kernel: NVRM: Xid (PCI:0000:03:00): 95, pid=1, Uncontained")
    lines.append("2025-10-01T12:00:00+0000 gpu-0 kernel: NVRM: Xid (PCI:0000:03:00): 13, pid=1, Graphics Exception")
    lines.append("2025-10-01T13:00:00+0000 gpu-0 kernel: NVRM: Xid (PCI:0000:03:00): 145, RLW Non-fatal")
    lines.append("2025-10-01T14:00:00+0000 gpu-0 kernel: NVRM: Xid (PCI:0000:03:00): 145, RLW Fatal")
    lines.append("2025-10-01T15:00:00+0000 gpu-0 kernel: NVRM: Xid (PCI:0000:03:00): 999, new")
    lines.append("Oct  1 16:00:00 gpu-0 kernel: NVRM: Xid (PCI:0000:03:00): 79, off the bus")
    out, error = run(path, "\n".join(lines), format="dmesg", set=["run_id=r", "gpus=8"])
    assert out.splitlines() == [
        "7 incidents imported, 0 known already",
        "1 lines of XID:13, no failure of the infrastructure",
        "1 lines of XID:145, no failure of the infrastructure",
    ]
    assert [row.trigger_detail["lines"] for row in Incident.objects.filter(xid=95)] == [200] * 5
    assert error is not None
    assert "short-iso" in rejects(path)[0]["reason"]
    again, _ = run(path, "\n".join(lines), format="dmesg", set=["run_id=r", "gpus=8"])
    assert again.splitlines()[0] == "0 incidents imported, 7 known already"


def test_wall_clock_dmesg_needs_a_zone(world: World, path: Path) -> None:
    text = "[Sun Nov  2 01:30:00 2025] NVRM: Xid (PCI:0000:03:00): 79, off the bus\n"
    _, error = run(path, text, time_zone="America/Denver", **LOG_OPTIONS)
    assert error is not None
    assert "came twice" in rejects(path)[0]["reason"]
    out, _ = run(path, text, time_zone="America/Denver", fold=0, **LOG_OPTIONS)
    assert out.startswith("1 incidents")
