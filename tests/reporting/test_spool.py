import json
import os
import random
import shutil
import signal
import time
from dataclasses import replace
from uuid import UUID

import pytest

from agent.reporting.boot import Boot, boot_lock
from agent.reporting.framing import HEADER_BYTES, FrameKind, frames_read
from agent.reporting.incident import Attempt
from agent.reporting.spool import SEGMENT_BYTES, boot_directories, dead_boots_adopt
from tests.reporting.conftest import whole_lines
from tests.reporting.facts import START, WORKLOAD, detected, reporter, resolved


def spooled(spool):
    """Every report in the spool, as it would be sent."""
    boots = [Boot.read(directory, lock_descriptor=None) for directory in boot_directories(spool)]
    return [json.loads(boot.reports[seq].read()) for boot in boots for seq in sorted(boot.reports)]


def test_it_writes_exactly_the_promised_payload(tmp_path):
    agent = reporter(tmp_path, None)
    record = resolved()
    assert agent.incident_resolved(record)
    (report,) = spooled(tmp_path)
    assert set(report) == {
        *("schema_version", "id", "agent_id", "boot_id", "seq", "type", "incident_id", "root_event_id"),
        *("sent_at", "workload", "kind", "trigger", "where", "phases", "progress", "state", "spare"),
        *("resolution", "attempts"),
    }
    assert report["schema_version"] == "1.0"
    assert report["workload"] == WORKLOAD
    assert (report["type"], report["seq"], report["boot_id"]) == ("incident.resolved", 1, agent.boot_id)
    assert report["incident_id"] == record.incident_id
    assert UUID(report["id"]).version == UUID(report["incident_id"]).version == 7
    assert report["phases"]["detected_at"] == "2026-11-30T12:00:00.007000Z"
    assert report["state"]["bytes"] == 6_442_450_944
    agent.close()


def test_it_numbers_reports_within_a_boot_and_names_each_boot_anew(tmp_path):
    boots = []
    for _ in range(2):
        agent = reporter(tmp_path, None)
        for number in range(3):
            agent.incident_detected(detected(number))
        boots.append(agent.boot_id)
        agent.close()
    assert [(report["boot_id"], report["seq"]) for report in spooled(tmp_path)] == [
        (boot, seq) for boot in boots for seq in (1, 2, 3)
    ]


def test_no_value_breaks_the_json(tmp_path):
    agent = reporter(tmp_path, None)
    deep = []
    for _ in range(1000):
        deep = [deep]
    awkward = {
        "deep": deep,
        "nul": "a\0b",
        "nan": float("nan"),
        "big": 2**70,
        "text": "a\ud800b",
        "path": tmp_path,
        "inner": [{1: float("inf")}],
    }
    assert agent.incident_detected(detected(**awkward))
    (report,) = spooled(tmp_path)
    assert report["trigger"]["detail"]["nan"] == "nan"
    assert report["trigger"]["detail"]["big"] == str(2**70)
    assert report["trigger"]["detail"]["text"] == report["trigger"]["detail"]["nul"] == "a?b"
    assert report["trigger"]["detail"]["inner"] == [{"1": "inf"}]
    agent.close()


def test_a_detail_that_outgrows_a_request_is_cut_and_says_so(tmp_path):
    agent = reporter(tmp_path, None)
    assert agent.incident_detected(detected(log="x" * 2_000_000))
    (report,) = spooled(tmp_path)
    assert report["trigger"]["detail"]["too_large_bytes"] > 2_000_000
    agent.close()


def test_many_attempts_with_long_texts_do_not_outgrow_a_report(tmp_path):
    agent = reporter(tmp_path, None)
    attempts = tuple(Attempt(START, "failed " * 100, "trace " * 10_000) for _ in range(500))
    assert agent.incident_detected(replace(detected(), attempts=attempts))
    (report,) = spooled(tmp_path)
    assert len(report["attempts"]) == 100
    assert len(json.dumps(report)) < 256 * 1024
    agent.close()


def test_it_never_raises_into_training(tmp_path, caplog):
    (tmp_path / "file").write_text("not a folder")
    agent = reporter(tmp_path / "file", None)
    assert not agent.incident_detected(detected())
    assert "free space or fix the disk" in caplog.text
    assert not agent.incident_detected("no record at all")
    agent.heartbeat(run_id="run-1", step=1)
    assert not agent.run_ended(run_id="run-1")
    assert not agent.flush(0.1)
    agent.close()
    assert not agent.incident_detected(detected())


@pytest.mark.parametrize("zeros_follow", [False, True], ids=["file ends there", "zeros follow"])
def test_a_tear_at_any_byte_loses_nothing_before_it(tmp_path, caplog, zeros_follow):
    agent = reporter(tmp_path / "whole", None)
    for number in range(3):
        agent.incident_detected(detected(number))
    agent.close()
    (directory,) = boot_directories(tmp_path / "whole")
    (segment,) = directory.glob("*.segment")
    content = segment.read_bytes()
    reports = [frame for frame in frames_read(content) if frame.kind is FrameKind.REPORT]
    assert len(reports) == 3
    torn = tmp_path / "torn" / "boots" / directory.name
    torn.mkdir(parents=True)
    for cut in range(len(content) + 1):
        filler = bytes(5000) if zeros_follow else b""
        (torn / segment.name).write_bytes(content[:cut] + filler)
        caplog.clear()
        (boot,) = dead_boots_adopt(tmp_path / "torn")
        whole = [frame for frame in reports if frame.end <= cut]
        assert [boot.reports[seq].read() for seq in sorted(boot.pending)] == [frame.body for frame in whole]
        ends = [0, *(frame.end for frame in frames_read(content) if frame.end <= cut)]
        torn_tail = content[ends[-1] : cut].rstrip(b"\0")
        assert boot.damaged == len(torn_tail)
        assert ("torn write" in caplog.text) == bool(torn_tail)
        assert (torn / segment.name).stat().st_size == ends[-1], "the tail is cut"
        boot.close()


def test_kill_9_at_any_moment_loses_no_promised_report(tmp_path, writer):
    chance = random.Random(20261130)
    for round_number in range(12):
        spool = tmp_path / str(round_number)
        process = writer(spool)
        assert process.stdout.readline().startswith("boot")
        time.sleep(chance.uniform(0.0, 0.25))
        process.send_signal(signal.SIGKILL)
        promised = [line.split()[1] for line in whole_lines(process) if line.startswith("wrote")]
        process.wait()
        (boot,) = dead_boots_adopt(spool)
        found = [json.loads(boot.reports[seq].read()) for seq in sorted(boot.reports)]
        assert [report["incident_id"] for report in found][: len(promised)] == promised
        assert len(found) <= len(promised) + 1, "at most the one whose call had not returned"
        assert [report["seq"] for report in found] == list(range(1, len(found) + 1))
        boot.close()


def test_segments_follow_each_other_and_close_without_spare_room(tmp_path):
    agent = reporter(tmp_path, None)
    for number in range(40):
        agent.incident_detected(detected(number, log="x" * 60_000))
    agent.close()
    segments = list(tmp_path.rglob("*.segment"))
    assert len(segments) >= 3
    assert all(segment.stat().st_size <= SEGMENT_BYTES * 3 // 4 + HEADER_BYTES for segment in segments)
    assert [report["trigger"]["detail"]["number"] for report in spooled(tmp_path)] == list(range(40))


def test_a_living_owner_keeps_its_boot(tmp_path):
    agent = reporter(tmp_path, None)
    agent.incident_detected(detected())
    assert dead_boots_adopt(tmp_path) == []
    agent.close()
    (boot,) = dead_boots_adopt(tmp_path)
    assert boot_lock(boot.directory) is None, "adopted once"
    boot.close()


def test_a_forked_child_does_not_keep_a_dead_agents_boot(tmp_path, eventually):
    hear, tell = os.pipe()
    agent = os.fork()
    if agent == 0:
        parent = reporter(tmp_path, None)
        parent.incident_detected(detected())
        os.write(tell, str(os.fork() or "").encode())
        time.sleep(60)
        os._exit(0)
    child = int(os.read(hear, 10))
    assert dead_boots_adopt(tmp_path) == []
    os.kill(agent, signal.SIGKILL)
    os.waitpid(agent, 0)
    adopted = []
    try:
        eventually(lambda: adopted.extend(dead_boots_adopt(tmp_path)) or adopted)
        os.kill(child, 0)
        assert len(adopted[0].pending) == 1
        adopted[0].close()
    finally:
        os.kill(child, signal.SIGKILL)


class Clock:
    def __init__(self, *seconds):
        self.seconds = list(seconds)

    def __call__(self):
        return self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]


def test_ids_and_seq_never_go_back_when_the_clock_does(tmp_path):
    noon = 1_796_000_000.0
    ids = []
    for times in [(noon, noon + 1), (noon + 9e8,), (noon - 9e8,), (0.0,), (noon + 5,)]:
        clock = Clock(*times)
        agent = reporter(tmp_path, None, now=clock)
        before = len(spooled(tmp_path))
        for number in range(4):
            assert agent.incident_detected(detected(number))
        agent.close()
        boots = [Boot.read(d, lock_descriptor=None) for d in boot_directories(tmp_path)]
        (mine,) = [boot for boot in boots if boot.boot_id == agent.boot_id]
        reports = [json.loads(mine.reports[seq].read()) for seq in sorted(mine.reports)]
        assert [report["seq"] for report in reports] == [1, 2, 3, 4]
        ids += [report["id"] for report in reports]
        assert len(spooled(tmp_path)) == before + 4
    assert ids == sorted(set(ids))


def test_sent_at_tells_the_clock_as_it_stood(tmp_path):
    agent = reporter(tmp_path, None, now=Clock(1_796_000_000.0, 1_796_000_000.0, 1_000_000_000.0))
    agent.incident_detected(detected())
    agent.incident_detected(detected())
    first, second = spooled(tmp_path)
    assert first["id"] < second["id"]
    assert second["sent_at"] == "2001-09-09T01:46:40.000000Z"
    agent.close()


def fill(directory):
    with (directory / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def test_a_full_disk_says_so_and_loses_nothing_while_the_agent_lives(small_disk, caplog):
    agent = reporter(small_disk / "spool", None)
    assert agent.incident_detected(detected(0))
    fill(small_disk)
    durable = [agent.incident_detected(detected(number)) for number in range(1, 200)]
    assert durable[0], "room set aside takes reports"
    assert not durable[-1]
    assert caplog.text.count("free space or fix the disk") == 1
    (small_disk / "filler").unlink()
    assert agent.incident_detected(detected(200))
    assert "can be written again" in caplog.text
    agent.close()
    numbers = [report["trigger"]["detail"].get("number") for report in spooled(small_disk / "spool")]
    assert numbers == list(range(201))


def test_a_report_that_died_with_the_agent_is_told_in_short(small_disk, receiver, writer):
    spool = small_disk / "spool"
    (small_disk / "filler").touch()
    process = writer(spool, count=150)
    assert process.stdout.readline().startswith("boot")
    first = process.stdout.readline().split()
    assert first[0] == "wrote"
    lines = [process.stdout.readline().split() for _ in range(149)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    durable = [first[1]] + [line[1] for line in lines if line[0] == "wrote"]
    refused = [line[1] for line in lines if line[0] == "refused"]
    assert refused, "256 KiB cannot hold 150 reports"

    agent = reporter(spool, receiver.url)
    assert agent.flush(30)
    agent.close()
    received = {report["incident_id"]: report for report in receiver.reports()}
    assert all("report_shortened" not in received[incident]["trigger"]["detail"] for incident in durable)
    told = [incident for incident in refused if incident in received]
    assert told == refused[: len(told)]
    assert told
    for incident in told:
        report = received[incident]
        assert "No space left on device" in report["trigger"]["detail"]["report_shortened"]
        assert report["attempts"][0]["outcome"] == "report_shortened"
        assert (report["kind"], report["where"]["rank"], report["type"]) == ("unplanned", 3, "incident.resolved")


def test_a_disk_full_from_the_start_is_used_once_it_has_room(small_disk, caplog):
    fill(small_disk)
    agent = reporter(small_disk / "spool", None)
    assert not agent.incident_detected(detected(0))
    (small_disk / "filler").unlink()
    assert agent.incident_detected(detected(1))
    agent.close()
    assert [report["trigger"]["detail"]["number"] for report in spooled(small_disk / "spool")] == [0, 1]


def test_a_boot_directory_deleted_under_a_running_agent_costs_no_report_in_memory(tmp_path):
    agent = reporter(tmp_path, None)
    agent.incident_detected(detected())
    shutil.rmtree(tmp_path / "boots")
    agent.incident_detected(detected())
    agent.close()


def test_a_report_is_synced_before_the_call_returns(tmp_path, monkeypatch):
    agent = reporter(tmp_path, None)
    agent.incident_detected(detected())
    synced, sync = [], os.fdatasync

    def spy(descriptor):
        synced.append(sum(path.read_bytes().count(b'"seq":2') for path in tmp_path.rglob("*.segment")))
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", spy)
    assert agent.incident_detected(detected())
    assert synced == [1], "written first, then synced, once"
    agent.close()
