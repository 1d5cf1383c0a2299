"""Optional TLS under every connection of the agent, with certificates on both ends.

Switched on by a certificate, its key and the authority that signs those of the run's other processes: from
`--tls-cert`, `--tls-key` and `--tls-ca`, or the variables below. Whoever has no certificate of that authority is
refused before the job's secret is asked for. The authority should sign for nobody else: names are not compared.
"""

from __future__ import annotations

import functools
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import Any

VARIABLES = {"cert": "YOCO_TLS_CERT", "key": "YOCO_TLS_KEY", "ca": "YOCO_TLS_CA"}
_CHUNK = 256 * 1024


class TlsMisconfigured(ValueError):
    """A file is missing or not what it should be; the message says which."""


def is_on() -> bool:
    """Whether this process uses TLS. Raises TlsMisconfigured if it is told of some of the three files only."""
    given = {option: os.environ.get(name) for option, name in VARIABLES.items()}
    if missing := [f"--tls-{option}" for option, path in given.items() if not path]:
        if len(missing) < len(given):
            raise TlsMisconfigured(f"TLS needs all three files; {' and '.join(missing)} is missing")
        return False
    return True


@functools.cache
def context(*, server: bool) -> ssl.SSLContext | None:
    """What connections are made with; None without TLS. Raises TlsMisconfigured."""
    if not is_on():
        return None
    cert, key, authority = (os.environ[name] for name in VARIABLES.values())
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    try:
        made.load_cert_chain(cert, key)
        made.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as error:
        raise TlsMisconfigured(f"TLS cannot use {cert}, {key} and {authority}: {error}") from error
    return made


def wrap(sock: socket.socket, *, server: bool) -> socket.socket | TlsSocket:
    """`sock` itself without TLS; otherwise after the handshake, within the time-out of `sock`. Raises OSError."""
    made = context(server=server)
    if made is None:
        return sock
    seconds = sock.gettimeout()
    wrapped = made.wrap_socket(sock, server_side=server)
    return TlsSocket(wrapped, seconds)


class TlsSocket:
    """What the agent needs of a socket, over TLS, for one thread that sends and another that receives.

    An `SSLSocket` may not be used by two threads at once, so it never blocks here: who must wait does so outside
    the lock.
    """

    def __init__(self, sock: ssl.SSLSocket, seconds: float | None) -> None:
        sock.setblocking(False)
        self.raw = sock
        self._seconds = seconds
        self._lock = threading.Lock()

    def settimeout(self, seconds: float | None) -> None:
        self._seconds = seconds

    def recv_into(self, view: memoryview | bytearray) -> int:
        return int(self._do(lambda: self.raw.recv_into(view)))

    def recvmsg_into(self, views: Sequence[memoryview]) -> tuple[int, Any, int, Any]:
        """Fills the first of `views` as far as it can."""
        return self.recv_into(views[0]), [], 0, None

    def sendmsg(self, views: Sequence[memoryview | bytes]) -> int:
        """Sends of the first of `views`."""
        return int(self._do(lambda: self.raw.send(memoryview(views[0])[:_CHUNK])))

    def sendall(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        while view:
            view = view[self.sendmsg([view]) :]

    def shutdown(self, how: int) -> None:
        # Of the connection and not of TLS: it wakes whoever waits.
        socket.socket.shutdown(self.raw, how)

    def close(self) -> None:
        with self._lock:
            self.raw.close()

    def _do(self, action: Any) -> Any:
        deadline = None if self._seconds is None else time.monotonic() + self._seconds
        while True:
            with self._lock:
                descriptor = self.raw.fileno()
                if descriptor < 0:
                    raise ConnectionError("the connection was closed")
                try:
                    return action()
                except ssl.SSLWantReadError:
                    event = select.POLLIN
                except ssl.SSLWantWriteError:
                    event = select.POLLOUT
            left = None if deadline is None else deadline - time.monotonic()
            waiting = select.poll()
            waiting.register(descriptor, event)
            if (left is not None and left <= 0) or not waiting.poll(None if left is None else left * 1000):
                raise TimeoutError("timed out")
