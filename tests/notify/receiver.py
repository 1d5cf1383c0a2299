"""A receiver of webhooks as a customer would write it: checks each signature, notes each id, answers as it is told."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks import Webhook


@dataclass
class Receiver:
    """`answer` decides the status by the number of the request. `got` holds (id, body) of every request accepted."""

    port: int = 0
    answer: Callable[[int], int] = lambda number: 204
    text: bytes | None = None
    """What it answers in the body; by default a few words."""
    got: list[tuple[str, bytes]] = field(default_factory=list)
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    busy: int = 0
    busiest: int = 0
    before_answer: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def ids(self) -> list[str]:
        return [name for name, _ in self.got]

    def verified(self, secret: str) -> list[dict[str, Any]]:
        """Every accepted request, its signature checked by the specification's own library."""
        return [Webhook(secret).verify(body, headers) for headers, body in self.requests]


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            with lock:
                receiver.requests.append((dict(self.headers.items()), body))
                number = len(receiver.requests)
                receiver.busy += 1
                receiver.busiest = max(receiver.busiest, receiver.busy)
            receiver.before_answer()
            status = receiver.answer(number)
            with lock:
                receiver.busy -= 1
                if 200 <= status < 300:
                    receiver.got.append((self.headers["webhook-id"], body))
            self.send_response(status)
            said = b"the receiver says %d" % status if receiver.text is None else receiver.text
            text = b"" if status == 204 else said
            self.send_header("content-length", str(len(text)))
            with suppress(BrokenPipeError, ConnectionResetError):  # a sender that was killed meanwhile
                self.end_headers()
                self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
