import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


class Receiver:
    """The receiver process of receiver.py, and what it has stored."""

    def __init__(self, directory):
        self.database, self.control = directory / "received.sqlite3", directory / "control"
        self.process, self.port = None, 0
        self.mode("ok")
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        command = [sys.executable, Path(__file__).with_name("receiver.py"), self.port, self.database, self.control]
        self.process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.wait()

    def wait(self):
        self.process.wait(20)
        self.process.stdout.close()

    def mode(self, word):
        fresh = self.control.with_suffix(".new")
        fresh.write_text(word)
        fresh.rename(self.control)

    def rows(self, query):
        with sqlite3.connect(self.database, timeout=20) as database:
            return database.execute(query).fetchall()

    def reports(self):
        return [json.loads(body) for (body,) in self.rows("SELECT body FROM reports ORDER BY id")]

    def incident_ids(self):
        return sorted(report["incident_id"] for report in self.reports())

    def heartbeats(self):
        return [json.loads(body) for (body,) in self.rows("SELECT body FROM heartbeats ORDER BY rowid")]

    def posts(self, path="/api/v1/reports"):
        return [row for row in self.rows("SELECT at, path, mode, count, bytes, inflated FROM posts") if row[1] == path]


def whole_lines(process):
    """The lines a killed process printed in full; what it was killed in does not count."""
    return process.stdout.read().rpartition("\n")[0].splitlines()


@pytest.fixture
def receiver(tmp_path):
    (tmp_path / "receiver").mkdir()
    receiver = Receiver(tmp_path / "receiver")
    yield receiver
    if receiver.process.poll() is None:
        receiver.kill()


@pytest.fixture
def writer(tmp_path):
    """Start writer.py on a spool; what was started is gone at the end."""
    started = []

    def start(spool, url="-", count=10**6):
        command = [sys.executable, "-m", "tests.reporting.writer", str(spool), url, str(count)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def small_disk():
    """A file system of 256 KiB."""
    directory = Path(tempfile.mkdtemp())
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(directory)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        shutil.rmtree(directory)
        pytest.skip("a small file system cannot be mounted here (needs root)")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)
    directory.rmdir()


@pytest.fixture
def eventually():
    def wait(condition, timeout_s=15.0):
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "did not come true in time"
            time.sleep(0.01)

    return wait
