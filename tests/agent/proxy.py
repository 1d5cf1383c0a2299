"""A TCP proxy between the agent's processes: it can slow, freeze and cut what passes."""

import contextlib
import socket
import threading
import time

CHUNK = 64 * 1024


class Proxy:
    """Listens on a port of its own and passes everything to `target`, as it is told."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.Lock()
        self.delay = 0.0
        """Seconds that each piece waits."""
        self.rate: float | None = None
        """Bytes per second of each direction of a connection; None: unlimited."""
        self.passed = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def freeze(self) -> None:
        """Nothing passes any more, and no connection ends: what a network partition looks like."""
        self._flows.clear()

    def thaw(self) -> None:
        """All passes again, what was held up first."""
        self._flows.set()

    def cut(self) -> None:
        """End all connections; new ones are possible."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for sock in (sock for pair in pairs for sock in pair):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def close(self) -> None:
        self._listener.close()
        self.thaw()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
            except OSError:
                if self._listener.fileno() < 0:
                    return
                continue
            with self._lock:
                self._pairs.append((near, far))
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                data = source.recv(CHUNK)
                self._flows.wait()
                if self.delay:
                    time.sleep(self.delay)
                if self.rate:
                    time.sleep(len(data) / self.rate)
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
                self.passed += len(data)
