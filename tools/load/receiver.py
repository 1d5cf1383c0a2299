"""The customers' receiver of webhooks: it checks each signature and remembers each event by its id."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

from tools.services import HOST


@dataclass
class Receiver:
    """`secrets` by path; `got` counts how often each event arrived at each path."""

    port: int
    secrets: dict[str, str] = field(default_factory=dict)
    got: Counter[tuple[str, str]] = field(default_factory=Counter)
    refused: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        try:
            Webhook(self.secrets[path]).verify(body, headers)
        except (KeyError, WebhookVerificationError):
            with self.lock:
                self.refused += 1
            return 400
        with self.lock:
            self.got[path, headers["webhook-id"]] += 1
        return 204


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver that listens on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = receiver.take(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            with suppress(OSError):  # the worker that sent it was killed meanwhile
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer((HOST, 0), Handler)
    receiver = Receiver(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
