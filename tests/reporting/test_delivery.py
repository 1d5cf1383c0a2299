"""Reports through a real HTTP server in another process, which fails in every way it can."""

import email.utils
import itertools
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from agent.reporting.spool import boot_directories
from tests.reporting.conftest import ROOT, whole_lines
from tests.reporting.facts import WORKLOAD, detected, reporter, resolved


@pytest.fixture
def agent(tmp_path, receiver):
    agent = reporter(tmp_path / "spool", receiver.url)
    yield agent
    agent.close()


def send(agent, count, make=resolved):
    records = [make(number) for number in range(count)]
    assert all(agent.incident_resolved(record) for record in records)
    return sorted(record.incident_id for record in records)


def test_it_delivers_in_batches_and_gzip(agent, receiver):
    receiver.mode("503")
    sent = send(agent, 600)
    receiver.mode("ok")
    assert agent.flush(30)
    assert receiver.incident_ids() == sent
    posts = [post for post in receiver.posts() if post[2] == "ok"]
    assert max(count for _, _, _, count, _, _ in posts) == 500
    assert all(inflated <= 1024 * 1024 for *_, inflated in posts)
    assert all(size < inflated / 3 for *_, size, inflated in posts if inflated > 10_000)


def test_a_batch_stays_below_a_mebibyte(agent, receiver):
    receiver.mode("500")
    sent = send(agent, 60, lambda number: resolved(number, log="y" * 40_000))
    receiver.mode("ok")
    assert agent.flush(30)
    assert receiver.incident_ids() == sent
    assert max(inflated for *_, inflated in receiver.posts()) <= 1024 * 1024


def test_the_caller_never_waits_for_the_network(agent, receiver):
    receiver.mode("hang")
    longest = 0.0
    for number in range(50):
        began = time.monotonic()
        agent.incident_detected(detected(number))
        agent.heartbeat(run_id="run-1", step=number)
        longest = max(longest, time.monotonic() - began)
    agent.run_ended(run_id="run-1")
    assert longest < 1.0, "an fsync, not the ten seconds until the request is given up"


@pytest.mark.parametrize("mode", ["500", "503", "429", "401", "garbage"])
def test_a_refusal_keeps_everything(agent, receiver, mode, caplog):
    receiver.mode(mode)
    sent = send(agent, 5)
    assert not agent.flush(1.2)
    assert receiver.reports() == []
    receiver.mode("ok")
    assert agent.flush(20)
    assert receiver.incident_ids() == sent
    assert "The service takes reports again." in caplog.text


def test_a_refused_key_is_said_once_and_flush_does_not_wait(agent, receiver, caplog):
    receiver.mode("401")
    send(agent, 3)
    began = time.monotonic()
    assert not agent.flush(30)
    assert not agent.flush(30)
    assert time.monotonic() - began < 5
    said = [record.getMessage() for record in caplog.records if "refuses the agent key" in record.getMessage()]
    assert said == [
        f"The service {receiver.url} refuses the agent key (401: mode 401); reports are kept. "
        "Set a valid key with the scope `ingest`."
    ]


def test_it_honours_retry_after(agent, receiver, eventually):
    receiver.mode("503")
    send(agent, 2)
    assert not agent.flush(3.5)
    posts = [at for at, *_ in receiver.posts()]
    assert 2 <= len(posts) <= 4
    assert min(later - earlier for earlier, later in itertools.pairwise(posts)) >= 0.98


def test_it_honours_retry_after_as_a_date(agent, receiver):
    receiver.mode("503|" + email.utils.formatdate(time.time() + 4, usegmt=True))
    send(agent, 2)
    assert not agent.flush(2.5)
    assert len(receiver.posts()) == 1


def test_an_absurd_retry_after_is_no_reason_to_fall_silent_or_crash(agent, receiver, eventually):
    receiver.mode("429|soon")
    sent = send(agent, 2)
    eventually(receiver.posts)
    receiver.mode("ok")
    assert agent.flush(20)
    assert receiver.incident_ids() == sent


def test_only_an_answer_for_a_report_acknowledges_it(agent, receiver):
    receiver.mode("500")
    sent = send(agent, 16)
    receiver.mode("partial")
    assert not agent.flush(0.1)
    receiver.mode("ok")
    assert agent.flush(20)
    assert receiver.incident_ids() == sent


def test_it_backs_off_when_the_service_fails(agent, receiver, eventually):
    receiver.mode("500")
    send(agent, 3)
    eventually(lambda: len(receiver.posts()) >= 4)
    posts = [at for at, *_ in receiver.posts()]
    gaps = [later - earlier for earlier, later in itertools.pairwise(posts)]
    assert gaps[2] > gaps[0] * 0.9
    assert sum(gaps[:3]) >= (0.5 + 1.0 + 2.0) / 2


def test_a_batch_too_large_is_halved(agent, receiver):
    receiver.mode("413")
    sent = send(agent, 20)
    assert agent.flush(20)
    assert receiver.incident_ids() == sent


def test_an_invalid_report_is_answered_and_does_not_block_the_rest(agent, receiver, caplog):
    agent.incident_detected(detected(unreadable=True))
    sent = send(agent, 3)
    assert agent.flush(20)
    assert receiver.incident_ids() == sent
    assert "invalid" in caplog.text
    assert "$.trigger.detail" in caplog.text


def test_an_invalid_report_that_the_service_misses_is_tried_again_later_not_at_once(
    tmp_path, receiver, monkeypatch, eventually
):
    monkeypatch.setattr("agent.reporting.boot.INVALID_AGAIN_S", 1.0)
    agent = reporter(tmp_path / "spool", receiver.url)
    agent.incident_detected(detected(unreadable=True))
    assert agent.flush(20)
    for step in range(10):
        agent.heartbeat(run_id="run-1", step=step)
        time.sleep(0.03)
    assert len(receiver.posts()) == 1
    time.sleep(1.0)
    agent.heartbeat(run_id="run-1", step=10)
    eventually(lambda: len(receiver.posts()) == 2)
    agent.close()


def test_the_end_of_a_run_that_is_refused_is_kept(agent, receiver):
    receiver.mode("422")
    agent.run_ended(run_id="run-1")
    assert not agent.flush(1.0)
    receiver.mode("ok")
    assert agent.flush(20)
    assert receiver.heartbeats()[-1]["run_ended"]


def test_killed_between_commit_and_answer_each_report_is_stored_once(agent, receiver):
    receiver.mode("503")
    sent = send(agent, 30)
    receiver.mode("die")
    assert not agent.flush(1.5) or receiver.process.poll() is not None
    receiver.wait()
    assert receiver.incident_ids() == sent, "it had committed"
    receiver.start()
    assert agent.flush(20)
    assert receiver.incident_ids() == sent
    assert {report["seq"] for report in receiver.reports()} == set(range(1, 31))


def test_an_unreachable_service_keeps_everything_for_the_next_agent(tmp_path, receiver, caplog):
    receiver.kill()
    sent = []
    for _ in range(3):
        agent = reporter(tmp_path / "spool", receiver.url)
        sent += send(agent, 4)
        agent.run_ended(run_id="run-1")
        assert not agent.flush(0.5)
        agent.close()
    assert "cannot be reached" in caplog.text
    receiver.start()
    agent = reporter(tmp_path / "spool", receiver.url)
    assert agent.flush(20)
    assert receiver.incident_ids() == sorted(sent)
    assert sum(beat.get("run_ended", False) for beat in receiver.heartbeats()) == 3
    agent.close()


def test_what_was_answered_is_not_sent_again_after_a_restart(tmp_path, receiver):
    agent = reporter(tmp_path / "spool", receiver.url)
    send(agent, 5)
    assert agent.flush(20)
    agent.close()
    before = len(receiver.posts())
    agent = reporter(tmp_path / "spool", receiver.url)
    assert agent.flush(20)
    assert len(receiver.posts()) == before
    agent.close()


def test_heartbeats_tell_the_newest_step_and_the_workload_once(agent, receiver, eventually):
    sent = send(agent, 2)
    assert agent.flush(20)
    for step in range(200):
        agent.heartbeat(run_id="run-1", step=step)
    eventually(lambda: any(beat["step"] == 199 for beat in receiver.heartbeats()))
    agent.heartbeat(run_id="run-1", step=200)
    eventually(lambda: any(beat["step"] == 200 for beat in receiver.heartbeats()))
    beats = receiver.heartbeats()
    assert len(beats) < 50, "in between only the newest is kept"
    assert [beat.get("workload") for beat in beats] == [WORKLOAD] + [None] * (len(beats) - 1)
    assert {"agent_id", "boot_id", "seq", "run_id", "step", "at"} <= set(beats[-1])
    assert beats[-1]["seq"] == len(sent)
    assert [beat["step"] for beat in beats] == sorted(beat["step"] for beat in beats)


def test_a_first_heartbeat_before_any_report_has_seq_zero(agent, receiver, eventually):
    agent.heartbeat(run_id="run-1", step=0)
    eventually(receiver.heartbeats)
    assert receiver.heartbeats()[0]["seq"] == 0


def test_what_the_service_misses_is_sent_again(agent, receiver, eventually):
    sent = send(agent, 10)
    assert agent.flush(20)
    with sqlite3.connect(receiver.database) as database:
        database.execute("DELETE FROM reports WHERE seq IN (4, 5, 9)")
    agent.heartbeat(run_id="run-1", step=1)
    eventually(lambda: receiver.incident_ids() == sent)


def test_what_is_no_longer_held_is_said_not_guessed(agent, receiver, eventually, caplog):
    send(agent, 2)
    assert agent.flush(20)
    receiver.mode("deny:7-1000000000000")
    agent.heartbeat(run_id="run-1", step=1)
    eventually(lambda: "that this spool no longer holds" in caplog.text)


def test_the_end_of_a_run_is_the_last_word_about_it(agent, receiver):
    receiver.mode("503")
    agent.heartbeat(run_id="run-1", step=41)
    assert agent.run_ended(run_id="run-1")
    receiver.mode("ok")
    assert agent.flush(20)
    last = receiver.heartbeats()[-1]
    assert (last["run_ended"], last["step"], last["run_id"]) == (True, 41, "run-1")


def test_the_end_of_a_run_survives_kill_9(tmp_path, receiver):
    script = (
        "import os, sys; from pathlib import Path; from tests.reporting.facts import reporter\n"
        "agent = reporter(Path(sys.argv[1]), None); agent.run_ended(run_id='run-9'); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path / "spool")], cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    agent = reporter(tmp_path / "spool", receiver.url)
    assert agent.flush(20)
    assert [beat["run_id"] for beat in receiver.heartbeats() if beat.get("run_ended")] == ["run-9"]
    agent.close()


def test_exactly_once_when_agents_and_service_are_killed_at_random(tmp_path, receiver, writer):
    chance = random.Random(7)
    spool, promised = tmp_path / "spool", []
    for round_number in range(4):
        writers = [writer(spool, receiver.url) for _ in range(3)]
        for process in writers:
            assert process.stdout.readline().startswith("boot")
        time.sleep(chance.uniform(0.05, 0.5))
        receiver.mode("die" if round_number % 2 else "500")
        time.sleep(chance.uniform(0.05, 0.5))
        for process in writers:
            process.send_signal(signal.SIGKILL)
        for process in writers:
            lines = whole_lines(process)
            promised += [line.split()[1] for line in lines if line.startswith("wrote")]
            process.wait()
        if receiver.process.poll() is not None:
            receiver.wait()
            receiver.start()
        receiver.mode("ok")
    agent = reporter(spool, receiver.url)
    assert agent.flush(60)
    agent.close()
    stored = receiver.incident_ids()
    assert len(stored) == len(set(stored)), "each once"
    assert set(promised) <= set(stored)
    assert len(stored) - len(promised) <= 12, "at most the call that each of 12 killed writers was in"
    reports = receiver.reports()
    assert len({(report["boot_id"], report["seq"]) for report in reports}) == len(reports)
    for boot_id in {report["boot_id"] for report in reports}:
        seqs = sorted(report["seq"] for report in reports if report["boot_id"] == boot_id)
        assert seqs == list(range(1, len(seqs) + 1)), "no gap within a boot"


def test_many_agents_share_one_spool(tmp_path, receiver, writer):
    writers = [writer(tmp_path / "spool", receiver.url, count=40) for _ in range(5)]
    outputs = [process.communicate(timeout=60)[0].splitlines() for process in writers]
    assert all(output[-1] == "flushed True" for output in outputs)
    promised = sorted(line.split()[1] for output in outputs for line in output if line.startswith("wrote"))
    assert len(promised) == 200
    assert receiver.incident_ids() == promised


def test_answered_segments_and_dead_boots_do_not_pile_up(tmp_path, receiver, monkeypatch):
    monkeypatch.setattr("agent.reporting.sender.KEPT_BYTES", 1_000_000)
    agent = reporter(tmp_path / "spool", receiver.url)
    for number in range(100):
        agent.incident_detected(detected(number, log="z" * 50_000))
    assert agent.flush(60)
    assert agent.flush(60)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.segment")) <= 1_000_000 + 2 * 1024 * 1024
    agent.close()
    for _ in range(20):
        agent = reporter(tmp_path / "spool", receiver.url)
        send(agent, 1)
        assert agent.flush(20)
        agent.close()
    assert len(boot_directories(tmp_path / "spool")) <= 18


def command_line(*arguments, **environment):
    script = (
        "import argparse, sys; from agent.reporting.cli import add_commands\n"
        "parser = argparse.ArgumentParser(prog='agent'); add_commands(parser.add_subparsers(required=True))\n"
        "arguments = parser.parse_args(); sys.exit(arguments.command(arguments))"
    )
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_the_commands_show_and_flush_a_spool(tmp_path, receiver):
    spool = tmp_path / "spool"
    assert command_line("spool", "status", tmp_path / "nothing").returncode == 2
    agent = reporter(spool, None)
    sent = send(agent, 3)
    shown = command_line("spool", "status", spool)
    assert "(running): 3 reports, 3 waiting" in shown.stdout
    refused = command_line("spool", "flush", spool, "--url", receiver.url, "--key-env", "KEY", KEY="yoco_test")
    assert (refused.returncode, receiver.reports()) == (1, [])
    assert "belong to a running agent" in refused.stderr
    agent.close()
    wrong = command_line("spool", "flush", spool, "--url", receiver.url, "--key-env", "KEY", KEY="wrong")
    assert wrong.returncode == 1
    assert "refuses the agent key" in wrong.stderr
    unset = command_line("spool", "flush", spool, "--url", receiver.url, "--key-env", "NOT_SET_ANYWHERE")
    assert unset.returncode == 2
    flushed = command_line("spool", "flush", spool, "--url", receiver.url, "--key-env", "KEY", KEY="yoco_test")
    assert (flushed.returncode, receiver.incident_ids()) == (0, sent)
    (row,) = json.loads(command_line("spool", "status", spool, "--json").stdout)
    assert (row["waiting"], row["answers"], row["running"]) == (0, {"created": 3}, False)
