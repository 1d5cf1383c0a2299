"""Several hosts: the same run, whole hosts lost, added and frozen. Each host is a launcher of its own on loopback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent import wal
from tests.agent.hosts import Hosts
from tests.agent.launch import EXAMPLE, ROOT, Outcome, assert_lossless, environment, read, train

STEPS = 40

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    outcome = train(tmp_path_factory.mktemp("undisturbed"), steps=STEPS, workers=4, spares=0)
    assert outcome.status == 0, outcome.output
    return outcome


def assert_exact(outcome: Outcome, reference: Outcome, run: Hosts) -> None:
    assert outcome.status == 0, run.output
    assert outcome.parts == reference.parts, run.output


def test_a_whole_host_is_lost_and_its_ranks_go_to_spares_of_another(undisturbed: Outcome, tmp_path: Path) -> None:
    with Hosts(tmp_path, hosts=2, workers=2, spares=1, steps=STEPS) as run:
        other = run.run_host(1, spares=0)
        run.join("node-2", spares=1)
        run.wait_for_step(5)
        other.signal_all(signal.SIGKILL)
        outcome = run.finish()
        third = run.hosts[2].process.wait(30)
    assert_exact(outcome, undisturbed, run)
    assert third == 0, run.output
    reports = outcome.resolved()
    assert sorted(report["where"]["rank"] for report in reports) == [2, 3]
    for report in reports:
        assert_lossless(report)
        assert report["where"]["node"] == "node-1"
        assert report["kind"] == "unplanned"
        assert report["trigger"]["signal"] == "heartbeat_lost"
    assert sorted(report["spare"]["node"] for report in reports) == ["node-0", "node-2"]


def test_a_host_that_comes_back_offers_spares(undisturbed: Outcome, tmp_path: Path) -> None:
    """Also what the script finds in its environment there, and that the first host may come up last."""
    with Hosts(tmp_path, hosts=2, workers=2, spares=0, steps=STEPS, options=("--port-range", "21000-21999")) as run:
        other = run.run_host(1, spares=0)
        run.wait_for_step(5)
        other.signal_all(signal.SIGKILL)
        other.process.wait()
        again = run.run_host(1, spares=0)
        run.wait_until("waiting for one")
        outcome = run.finish()
    assert_exact(outcome, undisturbed, run)
    assert "training has begun: this host's processes become spares" in again.output
    for report in outcome.resolved():
        assert_lossless(report)
        assert report["spare"]["node"] == "node-1"
        assert "waiting" in [attempt["outcome"] for attempt in report["attempts"]]


@pytest.mark.slow
def test_another_host_takes_over_when_the_first_is_lost(
    undisturbed: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its coordinator; the log survives. A second coordinator beside a living one is refused."""
    with Hosts(tmp_path, hosts=2, workers=2, spares=0, steps=STEPS, pause=0.3) as run:
        run.run_host(1, spares=0)
        run.join("node-2", spares=2)
        run.wait_for_step(5)
        monkeypatch.setattr(wal, "LOCK_SECONDS", 0.2)
        with pytest.raises(wal.LogInUse, match="another coordinator still writes to"):
            wal.Wal(run.state / "coordinator.wal")
        coordinator = run.hosts[0].coordinator()
        for pid in (coordinator, run.hosts[0].process.pid, *run.hosts[0].workers()):
            os.kill(pid, signal.SIGKILL)
        heir = run.start("heir", "takeover", "--state-dir", str(run.state))
        assert heir.process.wait(120) == 0, run.output
        assert run.hosts[1].process.wait(30) == 0
        outcome = read(run.folder, 0, run.output)
        again = run.start("again", "takeover", "--state-dir", str(run.state))
        assert again.process.wait(60) == 0, "the run is over, and that is all it says"
    assert_exact(outcome, undisturbed, run)
    assert sorted(report["where"]["rank"] for report in outcome.resolved()) == [0, 1]
    for report in outcome.resolved():
        assert_lossless(report)
        assert (report["where"]["node"], report["spare"]["node"]) == ("node-0", "node-2")


SHOW = """
import os, time
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES")
print("ENV", *[f"{name}={os.environ.get(name)}" for name in names], flush=True)
time.sleep(200)
"""


def test_the_environment_is_torchruns(tmp_path: Path) -> None:
    """With torchrun's own option names and variables, and one GPU shown to each process."""
    script = tmp_path / "show.py"
    script.write_text(SHOW)
    variables = {"CUDA_VISIBLE_DEVICES": "4,5,6"}
    with Hosts(tmp_path, hosts=2, workers=2, script=script, options=("--own-gpu",), variables=variables) as run:
        line = ["run", "--nnodes", "2", "--rdzv_endpoint", run.endpoint, "--nproc_per_node", "2", "--spares", "1"]
        pet = {"PET_NODE_RANK": "1"}
        run.start("other", *line, "--node", "other", "--own-gpu", str(script), variables=pet)
        run.wait_until("ENV RANK=-1 LOCAL_RANK=2")
        for rank in range(4):
            local, host = rank % 2, rank // 2
            seen = f"ENV RANK={rank} LOCAL_RANK={local} WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 GROUP_RANK={host} "
            run.wait_until(f"{seen}MASTER_ADDR=127.0.0.1 CUDA_VISIBLE_DEVICES={4 + local}")


def refused(*options: str, variables: dict[str, str] | None = None) -> str:
    line = [sys.executable, "-m", "agent", *options]
    known = environment() | (variables or {})
    done = subprocess.run(line, cwd=ROOT, env=known, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_what_is_missing_for_several_hosts_is_said() -> None:
    run = ("run", "--workers", "1", "--nnodes", "2")
    assert "several hosts need --rdzv-endpoint HOST:PORT" in refused(*run, str(EXAMPLE))
    run = (*run, "--rdzv-endpoint", "127.0.0.1:1")
    assert "several hosts need one secret" in refused(*run, str(EXAMPLE))
    assert "--node-rank 2 is not among 0 to 1" in refused(*run, "--node-rank", "2", str(EXAMPLE))
    secret = {"YOCO_SECRET": "0123456789abcdef"}
    wanted = "no run answers at 127.0.0.1:1 (Connection refused); start its first host"
    assert wanted in refused(*run, "--node-rank", "1", "--join-limit", "1", str(EXAMPLE), variables=secret)
    assert "say which run" in refused("join", "--spares", "1")
    wanted = "is no address that other hosts can find"
    assert wanted in refused("join", "--rdzv-endpoint", "0.0.0.0:7000", variables=secret)
    assert "is no range of ports" in refused("join", "--port-range", "7")


def test_a_second_launcher_of_the_same_name_or_rank_is_refused(tmp_path: Path) -> None:
    with Hosts(tmp_path, hosts=1, workers=2, spares=0, steps=200) as run:
        run.wait_for_step(1)
        same = run.join("node-0", 1)
        assert same.process.wait(60) == 2
        assert "there is a launcher of the name node-0 already" in same.output
        line = ["run", "--nnodes", "3", "--node-rank", "1", "--workers", "2", "--rdzv-endpoint", run.endpoint]
        other = run.start("other", *line, str(EXAMPLE))
        assert other.process.wait(60) == 2
        assert "has 1 hosts with 2 workers each; give the same --nnodes and --workers" in other.output
        outcome = run.finish()
    assert outcome.status == 0
    assert outcome.reports == []
