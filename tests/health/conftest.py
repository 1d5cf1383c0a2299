import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory):
    """The folder of a simulated libnvidia-ml.so.1."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here: the simulated libnvidia-ml.so.1 cannot be built")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("nvml_sim.c")
    flags = ["-shared", "-fPIC", "-O1", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([compiler, *flags, "-o", folder / "libnvidia-ml.so.1", source], check=True)
    return folder


class Machine:
    """GPUs whose values the test sets, their kernel log, and the monitor that watches both."""

    def __init__(self, folder, library):
        self.control, self.kernel_log = folder / "nvml", folder / "kernel.log"
        self.kernel_log.touch()
        self.values, self.verdicts, self.process = {"gpus": 2}, Queue(), None
        self.environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "NVML_SIM": str(self.control)}
        self.set()

    def set(self, **values):
        self.values.update({name.replace("__", "."): value for name, value in values.items()})
        self.write()

    def gpu(self, index, **values):
        self.values.update({f"{index}.{name.replace('__', '.')}": value for name, value in values.items()})
        self.write()

    def write(self):
        fresh = self.control.with_suffix(".new")
        fresh.write_text("".join(f"{name} {value}\n" for name, value in self.values.items()))
        fresh.rename(self.control)

    def log(self, line):
        with self.kernel_log.open("a") as file:
            file.write(line + "\n")

    def watch(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.health.watcher", str(self.kernel_log)],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline() == "started true\n"
        Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.verdicts.put(json.loads(line))

    def verdict(self, timeout_s=10.0):
        return self.verdicts.get(timeout=timeout_s)

    def silent(self, seconds):
        deadline = time.monotonic() + seconds
        try:
            return self.verdicts.get(timeout=max(0.0, deadline - time.monotonic())) is None
        except Empty:
            return True

    def command(self, *arguments):
        script = (
            "import argparse, sys; from agent.health.cli import add_commands\n"
            "parser = argparse.ArgumentParser(prog='agent'); add_commands(parser.add_subparsers(required=True))\n"
            "arguments = parser.parse_args(); sys.exit(arguments.command(arguments))"
        )
        return subprocess.run(
            [sys.executable, "-c", script, "health", "--kernel-log", str(self.kernel_log), *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
        )

    def end(self):
        if self.process is not None:
            self.process.stdin.close()
            assert self.process.wait(20) == 0, "the monitor stops in order"


@pytest.fixture
def machine(tmp_path, nvml_library):
    machine = Machine(tmp_path, nvml_library)
    yield machine
    machine.end()
