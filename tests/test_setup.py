"""Set-up on a machine that lacks something: one sentence saying what and what to do, and exit status 2."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services import ROOT
from tools.services import HOST, free_port

DEBIAN_NAMES = "redis-server chromium gettext"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that holds just what set-up reads, with one requirement that installs nothing from a registry."""
    folder = tmp_path / "checkout"
    (folder / "tools").mkdir(parents=True)
    for script in ("venv.sh", "system_packages.sh"):
        shutil.copy(ROOT / "tools" / script, folder / "tools")
    (folder / "requirements.txt").write_text("pip\n")
    return folder


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """The PATH of a bare machine: a directory of the programs it has."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "dirname", "rm", "touch"):
        (folder / name).symlink_to(shutil.which(name) or name)
    return folder


def add_program(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def run_script(checkout: Path, name: str, programs: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(checkout / "tools" / name)],
        cwd=checkout,
        env={"PATH": str(programs), "HOME": str(checkout), "PIP_CONFIG_FILE": "/dev/null"} | environment,
        capture_output=True,
        text=True,
        timeout=100,
    )


def refused(done: subprocess.CompletedProcess[str], sentence: str) -> bool:
    assert done.returncode == 2
    assert done.stderr.endswith(f"set-up: {sentence}\n"), done.stderr
    return True


def test_it_makes_an_environment_once_and_again_only_for_other_requirements(checkout, programs):
    def stamps() -> list[Path]:
        return list((checkout / ".venv").glob(".installed-*"))

    assert run_script(checkout, "venv.sh", programs, PYTHON=sys.executable).returncode == 0
    first = stamps()
    assert len(first) == 1

    again = run_script(checkout, "venv.sh", programs)
    assert (again.returncode, again.stderr) == (0, "")

    (checkout / "requirements.txt").write_text("pip\nsetuptools; python_version < '3'\n")
    changed = run_script(checkout, "venv.sh", programs)
    assert changed.returncode == 0
    assert "installing requirements.txt" in changed.stderr
    assert len(stamps()) == 1
    assert stamps() != first


def test_it_says_that_requirements_could_not_be_fetched_and_tries_again_next_time(checkout, programs):
    (checkout / "requirements.txt").write_text("yoco-no-such-requirement\n")
    nowhere = f"http://{HOST}:{free_port()}/"
    for _ in range(2):
        done = run_script(checkout, "venv.sh", programs, PYTHON=sys.executable, PIP_INDEX_URL=nowhere, PIP_RETRIES="0")
        assert refused(
            done,
            "pip could not install requirements.txt (its message is above): check the network, or the proxy "
            "(HTTPS_PROXY) and index (PIP_INDEX_URL) that pip uses, then run the same command again.",
        )


def test_it_says_that_python_is_missing_or_too_old(checkout, programs):
    advice = (
        "version 3.11 or newer: install one (Debian: apt-get install python3 python3-venv) or name it with "
        "PYTHON=/path/to/python3."
    )
    assert refused(run_script(checkout, "venv.sh", programs), f"no python3 on PATH is {advice}")
    old = add_program(programs, "python3", "exit 1")
    assert refused(run_script(checkout, "venv.sh", programs), f"no python3 on PATH is {advice}")
    assert refused(run_script(checkout, "venv.sh", programs, PYTHON=str(old)), f"PYTHON={old} is not {advice}")


def test_it_says_that_python_has_no_venv_module(checkout, programs):
    add_program(programs, "python3", f'case "$2" in *ensurepip*) exit 1;; esac; exec {sys.executable} "$@"')
    assert refused(
        run_script(checkout, "venv.sh", programs),
        "python3 has no venv module: install it (Debian: apt-get install python3-venv).",
    )


def test_an_environment_that_is_broken_is_made_anew(checkout, programs):
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").symlink_to("/nonexistent/python3")
    assert run_script(checkout, "venv.sh", programs, PYTHON=sys.executable).returncode == 0


@pytest.mark.postgres
class TestSystemPackages:
    """Where PostgreSQL and the libraries are installed, and Redis, a browser and gettext are not on PATH."""

    def run(self, checkout: Path, programs: Path) -> subprocess.CompletedProcess[str]:
        return run_script(checkout, "system_packages.sh", programs, PYTHON=sys.executable)

    def test_it_names_what_to_install_when_not_root(self, checkout, programs):
        add_program(programs, "id", "echo 1000")
        add_program(programs, "apt-get", "echo never called >&2; exit 9")
        assert refused(
            self.run(checkout, programs),
            f"the tests need {DEBIAN_NAMES} (names of Debian's packages): install them "
            f"(Debian: sudo apt-get install {DEBIAN_NAMES}) and run again.",
        )

    def test_as_root_it_installs_only_what_is_missing(self, checkout, programs):
        add_program(programs, "id", "echo 0")
        add_program(programs, "apt-get", 'echo "$@" >> "$HOME/apt-get.log"')
        add_program(programs, "msgfmt", "")
        assert self.run(checkout, programs).returncode == 0
        assert (checkout / "apt-get.log").read_text().splitlines() == [
            "update -qq",
            "install -qq --yes --no-install-recommends redis-server chromium",
        ]

    def test_it_says_that_apt_get_failed(self, checkout, programs):
        add_program(programs, "id", "echo 0")
        add_program(programs, "apt-get", "exit 100")
        assert refused(
            self.run(checkout, programs),
            f"apt-get could not install {DEBIAN_NAMES} (its message is above): check the network and "
            "/etc/apt/sources.list, or install them by hand, then run again.",
        )

    def test_it_is_silent_when_all_is_there(self, checkout, programs):
        for name in ("redis-server", "chromium-browser", "msgfmt"):
            add_program(programs, name, "")
        done = self.run(checkout, programs)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
