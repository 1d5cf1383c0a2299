"""Networks that break and hosts that freeze: the run recovers as after any loss; what was given up writes no more."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import control
from tests.agent.hosts import Host, Hosts
from tests.agent.launch import SCRIPTS, Outcome, assert_lossless, train
from tests.agent.proxy import Proxy

STEPS = 300
PAUSE = 0.03
WITNESS = SCRIPTS / "witness.py"
LIMITS = ("--heartbeat-limit", "5")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("undisturbed")
    variables = {"WITNESS": str(folder / "witness")}
    outcome = train(folder, steps=STEPS, workers=2, spares=0, script=WITNESS, variables=variables)
    assert outcome.status == 0, outcome.output
    return outcome


def two_hosts(folder: Path, *, spares: int = 1, **options: object) -> Hosts:
    """One rank on each host; the first has the spares."""
    folder.mkdir(parents=True, exist_ok=True)
    variables = {"WITNESS": str(folder / "witness")}
    known = {"steps": STEPS, "pause": PAUSE, "script": WITNESS, "options": LIMITS, "variables": variables, **options}
    return Hosts(folder, hosts=2, workers=1, spares=spares, **known)  # type: ignore[arg-type]


def assert_exact(outcome: Outcome, reference: Outcome, run: Hosts) -> None:
    assert outcome.status == 0, run.output
    assert outcome.parts == reference.parts, run.output


def assert_silent_since_replaced(run: Hosts, zombies: list[int]) -> None:
    """What was given up wrote nothing after its rank's successor had begun to, and is gone."""
    lines = [line.split() for line in (run.folder / "witness").read_text().splitlines()]
    rows = [(int(rank), int(version), int(pid)) for rank, version, pid in lines]
    for zombie in zombies:
        ranks = {rank for rank, _, pid in rows if pid == zombie}
        assert len(ranks) == 1, "it trained before"
        last = max(version for _, version, pid in rows if pid == zombie)
        successors = [version for rank, version, pid in rows if rank in ranks and pid != zombie]
        assert last <= min(successors)
        places = [index for index, row in enumerate(rows) if row[2] == zombie]
        first = next(index for index, row in enumerate(rows) if row[0] in ranks and row[2] != zombie)
        assert places[-1] < first, "it wrote after its successor had begun"
        wait_until_gone(zombie)


def wait_until_gone(pid: int, timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return
        if state in "ZX":
            return
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.1)


def start_second(run: Hosts, endpoint: str | None = None) -> Host:
    other = run.run_host(1, 0, endpoint=endpoint)
    run.wait_for_step(10)
    return other


@pytest.mark.slow
def test_a_frozen_host_is_replaced_and_its_zombies_end(undisturbed: Outcome, tmp_path: Path) -> None:
    with two_hosts(tmp_path) as run:
        other = start_second(run)
        zombies = other.signal_all(signal.SIGSTOP)
        run.wait_until("epoch 2: training resumes")
        other.signal_all(signal.SIGCONT)
        for zombie in zombies:
            wait_until_gone(zombie)
        outcome = run.finish()
        assert_exact(outcome, undisturbed, run)
        assert_silent_since_replaced(run, zombies)
        assert other.process.wait(30) == 0, run.output
    (report,) = outcome.resolved()
    assert_lossless(report)
    assert (report["where"]["node"], report["trigger"]["signal"]) == ("node-1", "heartbeat_lost")


@pytest.mark.slow
def test_a_frozen_launcher_stops_nobody(undisturbed: Outcome, tmp_path: Path) -> None:
    """Its workers train on; one that is lost meanwhile is noticed by its connection and replaced."""
    with two_hosts(tmp_path) as run:
        other = start_second(run)
        os.kill(other.process.pid, signal.SIGSTOP)
        run.wait_until("the launcher on node-1 is silent; its workers go on")
        before = control.ask(run.state, {"type": "status"})
        assert before["epoch"] == 1
        run.wait_for_step(before["committed"] + 3)
        os.kill(other.workers()[0], signal.SIGKILL)
        run.wait_until("epoch 2: training resumes")
        os.kill(other.process.pid, signal.SIGCONT)
        outcome = run.finish()
        assert other.process.wait(30) == 0, run.output
    assert_exact(outcome, undisturbed, run)
    (report,) = outcome.resolved()
    assert_lossless(report)


@pytest.mark.slow
def test_a_host_behind_a_broken_path_to_the_coordinator_is_replaced(undisturbed: Outcome, tmp_path: Path) -> None:
    """Its workers still reach their peers, but nobody can tell them anything: they are cut off, and end later."""
    with two_hosts(tmp_path) as run:
        proxy = Proxy(("127.0.0.1", run.port))
        other = start_second(run, proxy.endpoint)
        zombies = other.workers()
        proxy.freeze()
        run.wait_until("epoch 2: training resumes")
        proxy.thaw()
        for zombie in zombies:
            wait_until_gone(zombie)
        outcome = run.finish()
        assert_exact(outcome, undisturbed, run)
        assert_silent_since_replaced(run, zombies)
        proxy.close()
    (report,) = outcome.resolved()
    assert_lossless(report)
    assert (report["where"]["rank"], report["trigger"]["signal"]) == (1, "heartbeat_lost")


@pytest.mark.slow
def test_cut_and_slow_connections_to_the_coordinator_cost_nothing(undisturbed: Outcome, tmp_path: Path) -> None:
    """No incident but that of the worker that is killed in between."""
    with two_hosts(tmp_path) as run:
        proxy = Proxy(("127.0.0.1", run.port))
        other = start_second(run, proxy.endpoint)
        for _ in range(3):
            proxy.cut()
            run.wait_for_step(control.ask(run.state, {"type": "status"})["committed"] + 5)
        assert control.ask(run.state, {"type": "status"})["epoch"] == 1
        proxy.delay, proxy.rate = 0.1, 200_000
        os.kill(other.workers()[0], signal.SIGKILL)
        outcome = run.finish()
        proxy.close()
    assert_exact(outcome, undisturbed, run)
    (report,) = outcome.resolved()
    assert_lossless(report)
    assert report["where"]["node"] == "node-1"


def test_a_host_that_never_comes_back_to_its_coordinator_gives_up(tmp_path: Path) -> None:
    """Nobody waits for ever: neither the host that is cut off, nor the run that has no spare for its rank."""
    limits = ("--heartbeat-limit", "3", "--coordinator-limit", "5", "--without-spare", "stop")
    with two_hosts(tmp_path, spares=0, options=limits) as run:
        proxy = Proxy(("127.0.0.1", run.port))
        other = start_second(run, proxy.endpoint)
        zombies = other.workers()
        proxy.freeze()
        outcome = run.finish(60)
        assert other.process.wait(60) == 1
        for zombie in zombies:
            wait_until_gone(zombie, 60)
        assert "the coordinator is unreachable" in other.output
        proxy.close()
    assert outcome.status == 1
    assert "is kept in" in run.hosts[0].output
    assert (run.state / "kept" / "meta.json").exists()


@pytest.fixture
def second_network() -> Iterator[tuple[str, str, str]]:
    """A network namespace as another machine: its name, this side's address, and its own link."""
    name, link = f"agent{os.getpid()}", f"ag{os.getpid() % 100000}"
    far, subnet = f"{link}b", f"10.77.{os.getpid() % 250}"
    setup = [
        f"ip netns add {name}",
        f"ip link add {link} type veth peer name {far}",
        f"ip link set {far} netns {name}",
        f"ip addr add {subnet}.1/24 dev {link}",
        f"ip link set {link} up",
        f"ip -n {name} addr add {subnet}.2/24 dev {far}",
        f"ip -n {name} link set {far} up",
        f"ip -n {name} link set lo up",
    ]
    try:
        for line in setup:
            if subprocess.run(line.split(), capture_output=True, check=False).returncode:
                pytest.skip("no network namespace can be made here; it takes root and iproute2")
        yield name, f"{subnet}.1", far
    finally:
        with contextlib.suppress(OSError):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            subprocess.run(["ip", "link", "del", link], capture_output=True, check=False)


def test_a_partitioned_host_is_replaced(
    undisturbed: Outcome, tmp_path: Path, second_network: tuple[str, str, str]
) -> None:
    """The host loses every packet, gloo's too, and comes back when the run goes on without it."""
    name, address, link = second_network
    with two_hosts(tmp_path, host=address) as run:
        run.variables["TEST_NETWORK"] = name
        other = start_second(run)
        zombies = other.workers()
        subprocess.run(["ip", "-n", name, "link", "set", link, "down"], check=True)
        run.wait_until("epoch 2: training resumes")
        subprocess.run(["ip", "-n", name, "link", "set", link, "up"], check=True)
        for zombie in zombies:
            wait_until_gone(zombie, 60)
        outcome = run.finish()
        assert_exact(outcome, undisturbed, run)
        assert_silent_since_replaced(run, zombies)
    (report,) = outcome.resolved()
    assert_lossless(report)
    assert (report["where"]["rank"], report["trigger"]["signal"]) == (1, "heartbeat_lost")


@pytest.mark.slow
def test_a_slow_and_lossy_link_between_workers_loses_nothing(
    undisturbed: Outcome, tmp_path: Path, second_network: tuple[str, str, str]
) -> None:
    """A link that drops what its short queue cannot hold; gradients, and then the state of a lost rank, cross it."""
    name, address, link = second_network
    slow = ["root", "tbf", "rate", "20mbit", "burst", "4kb", "limit", "12kb"]
    with two_hosts(tmp_path, host=address) as run:
        run.variables["TEST_NETWORK"] = name
        start_second(run)
        near = link.removesuffix("b")
        if subprocess.run(["tc", "qdisc", "add", "dev", near, *slow], capture_output=True, check=False).returncode:
            pytest.skip("this kernel has no token bucket for a link")
        subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", link, *slow], check=True)
        run.wait_for_step(control.ask(run.state, {"type": "status"})["committed"] + 5)
        assert control.ask(run.state, {"type": "status"})["epoch"] == 1, "a slow link alone is no incident"
        # The spare is beside rank 0, so the state crosses the link.
        os.kill(run.hosts[0].workers()[0], signal.SIGKILL)
        run.wait_until("epoch 2: training resumes")
        outcome = run.finish()
        counters = subprocess.run(
            ["tc", "-n", name, "-s", "qdisc", "show", "dev", link], check=True, capture_output=True, text=True
        ).stdout
        assert "dropped 0," not in counters, "no packet was lost, so this proves nothing"
    assert_exact(outcome, undisturbed, run)
    (report,) = outcome.resolved()
    assert_lossless(report)
