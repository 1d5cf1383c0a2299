"""The web service as the demo runs it: gunicorn on loopback, which can be killed and started again."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
from django.conf import settings
from django.core.management.base import CommandError

START_TIMEOUT_S = 30


def require_free_port(port: int) -> None:
    """Raises CommandError when something else listens on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise CommandError(
                f"Port {port} of 127.0.0.1 is in use. Stop the program that uses it, or choose another port: "
                f"make demo ARGS='--port {port + 1}'.",
                returncode=2,
            ) from error


class DemoService:
    """`gunicorn yoco.wsgi` on 127.0.0.1, in a process group of its own."""

    def __init__(self, *, port: int, log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._port = port
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it and waits until it answers. Raises CommandError with the end of its log when it does not."""
        command = [sys.executable, "-m", "gunicorn", "yoco.wsgi", "--bind", f"127.0.0.1:{self._port}"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--workers", "1", "--threads", "4", "--graceful-timeout", "5", "--no-control-socket"],
                cwd=settings.BASE_DIR,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                httpx.get(f"{self.url}/accounts/login/", timeout=2)
            except httpx.HTTPError:
                time.sleep(0.1)
            else:
                return
        tail = self._log.read_text(errors="replace")[-800:]
        raise CommandError(f"The service did not start on {self.url}; the end of {self._log}:\n{tail}")

    def kill(self) -> None:
        """Ends it as a crash would: SIGKILL to every process of the group."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """Ends it in order."""
        self._signal(signal.SIGTERM)

    def wait(self) -> None:
        """Returns when it ends by itself."""
        if self._process is not None:
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        os.killpg(self._process.pid, number)
        self._process.wait(timeout=20)
