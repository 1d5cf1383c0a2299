"""Strangers on the network: without the secret, without a certificate, with garbage. None of them harms the run."""

import os
import socket
import ssl
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import control, tls, wire
from tests.agent.hosts import Hosts
from tests.agent.launch import Outcome, assert_lossless, train

STEPS = 500

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    outcome = train(tmp_path_factory.mktemp("undisturbed"), steps=STEPS, workers=2, spares=0)
    assert outcome.status == 0, outcome.output
    return outcome


def make_certificates(folder: Path) -> dict[str, str]:
    """An authority and a certificate that it signed, as the variables that name them."""
    folder.mkdir(parents=True)
    new = "openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    lines = [
        f"{new} -x509 -days 2 -subj /CN=authority -keyout ca.key -out ca.pem",
        f"{new} -subj /CN=host -keyout host.key -out host.csr",
        "openssl x509 -req -days 2 -in host.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out host.pem",
    ]
    for line in lines:
        subprocess.run(line.split(), cwd=folder, check=True, capture_output=True)
    files = {"cert": "host.pem", "key": "host.key", "ca": "ca.pem"}
    return {tls.VARIABLES[option]: str(folder / name) for option, name in files.items()}


def listening(pid: int) -> list[int]:
    """Ports on which a process listens at 127.0.0.1."""
    own = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            own.add(os.readlink(entry))
        except OSError:
            continue
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]


def send(port: int, *pieces: bytes) -> bytes:
    """What comes back for bytes that no peer of ours would send."""
    with socket.create_connection(("127.0.0.1", port), timeout=1) as sock:
        try:
            for piece in pieces:
                sock.sendall(piece)
            sock.shutdown(socket.SHUT_WR)
            return sock.recv(4096)
        except OSError:
            return b""


def torment(ports: list[int]) -> None:
    """Garbage of several kinds, and connections that say nothing."""
    for port in ports:
        send(port)
        send(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        send(port, b"\xff" * 100_000)
        send(port, struct.pack(">I", 0xFFFFFFFF) * 8, bytes(32), struct.pack(">I", 0xFFFFFFFF))
        send(port, struct.pack("<q", 2**62) + bytes(64))


def handshake_with(port: int, secret: bytes) -> None:
    wire.dial(("127.0.0.1", port), secret).close()


def every_port(run: Hosts) -> dict[int, list[int]]:
    """Ports of each process of the run: the coordinator's and the workers'."""
    found = {run.hosts[0].process.pid: [run.port]}
    for host in run.hosts:
        found |= {pid: [port for port in listening(pid) if port != run.port] for pid in host.workers()}
    return found


def test_strangers_do_no_harm(undisturbed: Outcome, tmp_path: Path) -> None:
    """To each port of the run, torch's included; then a worker is lost, and its replacement is exact."""
    with Hosts(tmp_path, hosts=2, workers=1, spares=1, steps=STEPS) as run:
        other = run.run_host(1, 0)
        run.wait_for_step(3)
        ports = every_port(run)
        assert all(len(each) >= 2 for pid, each in ports.items() if pid != run.hosts[0].process.pid)
        torment([port for each in ports.values() for port in each])
        with pytest.raises(wire.PeerRefused, match="does not know this job's secret"):
            handshake_with(run.port, b"another secret, as long")
        assert control.ask(run.state, {"type": "status"})["epoch"] == 1
        os.kill(other.workers()[0], 9)
        outcome = run.finish()
    assert outcome.status == 0, run.output
    assert outcome.parts == undisturbed.parts, run.output
    (report,) = outcome.resolved()
    assert_lossless(report)


def test_who_knows_the_secret_and_sends_nonsense_does_no_harm(tmp_path: Path) -> None:
    with Hosts(tmp_path, workers=2, spares=0, steps=60) as run:
        run.wait_for_step(3)
        address, secret = control.read(run.state)
        nonsense = [
            struct.pack(">I", 0xFFFFFFFF),
            struct.pack(">I", 3) + b"[1]",
            struct.pack(">I", 4) + b"\xff\xfe\x00\x01",
            struct.pack(">I", 14) + b'{"type":"node"',
            *(wire._encode({"type": kind}) for kind in ("node", "worker", "job", "drain", "status", "what")),
            wire._encode({"type": "node", "node": "x", "instance": "y", "workers": {"a": 1}}),
        ]
        for data in nonsense:
            sock = wire.dial(address, secret)
            sock.sendall(data)
            sock.close()
        assert control.ask(run.state, {"type": "status"})["epoch"] == 1
        outcome = run.finish()
    assert outcome.status == 0, run.output
    assert outcome.reports == []


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Certificates, which this process uses too when it asks the run."""
    files = make_certificates(tmp_path / "mine")
    for name, path in files.items():
        monkeypatch.setenv(name, path)
    tls.context.cache_clear()
    yield files
    tls.context.cache_clear()


def test_with_tls_only_certified_peers_take_part(undisturbed: Outcome, tmp_path: Path, mine: dict[str, str]) -> None:
    """Two hosts, one lost: the state moves over TLS too. Strangers of four kinds try at the coordinator's port."""
    foreign = make_certificates(tmp_path / "foreign")
    with Hosts(tmp_path / "run", hosts=2, workers=1, spares=1, steps=STEPS, variables=mine) as run:
        other = run.run_host(1, 0)
        run.wait_for_step(3)
        torment([port for each in every_port(run).values() for port in each])
        assert answer_of_client(run.port, None) == "no answer"
        assert answer_of_client(run.port, foreign) == "refused"
        assert answer_of_client(run.port, mine) == "an answer"
        stranger = run.start("stranger", *join(run), variables=foreign)
        assert stranger.process.wait(60) == 2
        assert "give the run's secret and certificates" in stranger.output
        stranger = run.start("stranger", *join(run), variables={**mine, "YOCO_SECRET": "another secret, as long"})
        assert stranger.process.wait(60) == 2
        assert "does not know this job's secret" in stranger.output
        os.kill(other.workers()[0], 9)
        outcome = run.finish()
    assert outcome.status == 0, run.output
    assert outcome.parts == undisturbed.parts, run.output
    (report,) = outcome.resolved()
    assert_lossless(report)


def join(run: Hosts) -> list[str]:
    return ["join", "--rdzv-endpoint", run.endpoint, "--node", "stranger", "--join-limit", "5"]


def answer_of_client(port: int, files: dict[str, str] | None) -> str:
    """What the coordinator says to 32 bytes, the beginning of our handshake."""
    if files is None:
        return "an answer" if len(send(port, bytes(32))) == 64 else "no answer"
    context = ssl.create_default_context(cafile=files[tls.VARIABLES["ca"]])
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(files[tls.VARIABLES["cert"]], files[tls.VARIABLES["key"]])
    with socket.create_connection(("127.0.0.1", port), timeout=1) as sock:
        try:
            with context.wrap_socket(sock) as secure:
                secure.sendall(bytes(32))
                return "an answer" if len(secure.recv(64)) == 64 else "refused"
        except ssl.SSLError:
            return "refused"


def test_tls_needs_all_its_files(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "mine")
    some = {name: path for name, path in files.items() if name != tls.VARIABLES["key"]}
    outcome = train(tmp_path / "a", workers=1, spares=0, variables=some)
    assert outcome.status == 2
    assert "TLS needs all three files; --tls-key is missing" in outcome.output
    outcome = train(tmp_path / "b", workers=1, spares=0, variables={**files, tls.VARIABLES["ca"]: "/absent"})
    assert outcome.status == 2
    assert "TLS cannot use" in outcome.output
