"""A gunicorn as in production, and clients that cost next to nothing beside it."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.services import HOST, Server, free_port

ROOT = Path(__file__).resolve().parent.parent.parent
WORKERS = 2
THREADS = 4  # as in docker-compose.yml


def web_server(directory: Path, database_url: str) -> Server:
    """The service with `bench/hello` beside it, not started yet."""
    port = free_port()
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    environment = kept | {
        "DJANGO_SETTINGS_MODULE": "tools.bench.server_settings",
        "DATABASE_URL": database_url,
        "PYTHONPATH": str(ROOT),
        # The limiter runs; it must not refuse.
        "INGEST_RATE": "1000000",
        "INGEST_BURST": "1000000",
    }
    command = [
        sys.executable, "-m", "gunicorn", "yoco.wsgi:application", "--bind", f"{HOST}:{port}",
        "--workers", str(WORKERS), "--threads", str(THREADS), "--worker-tmp-dir", str(directory), "--no-control-socket",
    ]  # fmt: skip
    return Server("web", command, directory=directory, port=port, environment=environment)


def request_bytes(method: str, path: str, body: bytes = b"", key: str = "") -> bytes:
    """A whole HTTP request, made before the clock starts."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}", f"Content-Length: {len(body)}"]
    if body:
        lines.append("Content-Type: application/json")
    if key:
        lines.append(f"Authorization: Bearer {key}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class Connection:
    """One kept-alive connection. An HTTP library would cost as much as the view that answers `hello`."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._open()

    def _open(self) -> None:
        self._socket = socket.create_connection((HOST, self.port), timeout=120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, request: bytes) -> bytes:
        """Sends a request and returns the body of the answer; raises RuntimeError unless its status is 200."""
        self._socket.sendall(request)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._receive()
        head, _, body = received.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        while len(body) < length:
            body += self._receive()
        if lines[0].split()[1] != b"200":
            raise RuntimeError(f"the server answered {head.decode()} {body.decode()[:500]}")
        if b"connection: close" in lines:
            self._socket.close()
            self._open()
        return body

    def _receive(self) -> bytes:
        chunk = self._socket.recv(65536)
        if not chunk:
            raise RuntimeError("the server closed the connection")
        return chunk


def send_all(port: int, requests: Sequence[Iterable[bytes]]) -> float:
    """Sends each sequence over a connection of its own, all at once; returns the seconds until the last answer."""
    connections = [Connection(port) for _ in requests]

    def send(connection: Connection, mine: Iterable[bytes]) -> None:
        for request in mine:
            connection.exchange(request)

    with ThreadPoolExecutor(len(connections)) as pool:
        began = time.perf_counter()
        for done in [pool.submit(send, *pair) for pair in zip(connections, requests, strict=True)]:
            done.result()
        return time.perf_counter() - began
