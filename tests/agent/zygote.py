"""Launchers without the seconds that it takes to import torch: forked from one process that has done it once.

What runs in the fork is what `python -m agent` runs; `test_launcher.py` starts that from a shell's command line too.
"""

import ctypes
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.agent.preloaded"])


class Launcher:
    """`python -m agent ARGUMENTS`, with output to a file."""

    def __init__(self, arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], output: Path) -> None:
        self._process = _context.Process(target=_main, args=(list(arguments), folder, dict(environment), output))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("agent", timeout or 0)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def launch(
    arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], output: Path
) -> Launcher | subprocess.Popen[bytes]:
    """A `Launcher`, or a fresh process where the environment holds what is read only when one begins."""
    if environment.get("LD_LIBRARY_PATH") == os.environ.get("LD_LIBRARY_PATH"):
        return Launcher(arguments, folder=folder, environment=environment, output=output)
    line = [sys.executable, "-m", "agent", *arguments]
    with output.open("a") as log:
        return subprocess.Popen(line, cwd=folder, env=environment, stdout=log, stderr=log)


def _enter_network(name: str) -> None:
    """From here on this process lives in another network namespace, as if on another machine."""
    with Path(f"/run/netns/{name}").open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network {name}")


def _main(arguments: list[str], folder: Path, environment: dict[str, str], output: Path) -> None:
    from agent import faults
    from agent.cli import main

    multiprocessing.set_start_method("fork", force=True)  # as in a process that was not made by multiprocessing
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if "TEST_NETWORK" in environment:
        _enter_network(environment["TEST_NETWORK"])
    faults.script = faults.Script()  # it was made before, without this environment
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.exit(main(arguments))
