"""The locks pin what requirements/*.txt ask for, all of it, each with its hashes. Offline: no resolver runs here."""

import re
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.version import Version

from tests.test_deployment import DOCKERFILE, ROOT, installed_with, normal

REQUIREMENTS = ROOT / "requirements"
# The wheel of torch is chosen for the accelerator; see docs/security.md.
FREE = {"torch"}


def locked(file: Path) -> dict[str, tuple[Version, int]]:
    """Version and number of hashes by name, of the entries that apply to this machine."""
    found = {}
    entry = re.compile(r"^(\S+)==(\S+?)(?: ; (.+?))? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)
    text = file.read_text()
    for name, version, marker, hashes in entry.findall(text):
        if not marker or Marker(marker).evaluate():
            found[normal(name)] = (Version(version), hashes.count("sha256:"))
    pinned = len(re.findall(r"^[a-z0-9]", text, re.MULTILINE))
    assert len(entry.findall(text)) == pinned, "an entry of the lock is not understood, or has no hash"
    return found


def asked(file: str) -> list[Requirement]:
    lines = (REQUIREMENTS / file).read_text().splitlines()
    return [Requirement(line.partition(" #")[0]) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize(
    ("lock", "files"), [("service.lock", ["service.txt"]), ("dev.lock", ["service.txt", "dev.txt"])]
)
def test_the_lock_satisfies_the_requirements(lock: str, files: list[str]) -> None:
    """Run `make lock` after a change of requirements/*.txt."""
    pins = locked(REQUIREMENTS / lock)
    wanted = [requirement for file in files for requirement in asked(file)]
    unmet = [str(one) for one in wanted if normal(one.name) not in pins]
    assert not unmet
    for one in wanted:
        version, hashes = pins[normal(one.name)]
        assert one.specifier.contains(version, prereleases=True), f"{one} but {version} is locked"
        assert hashes
    needed = {name for file in files for name in installed_with(file)} - FREE
    assert needed - pins.keys() - installed_with("agent.txt") == set()


def test_the_tools_are_locked_at_the_versions_of_the_service() -> None:
    service, tools = locked(REQUIREMENTS / "service.lock"), locked(REQUIREMENTS / "dev.lock")
    assert {name: tools.get(name) for name in service} == service


def test_the_image_of_the_service_takes_nothing_but_what_is_locked() -> None:
    (install,) = re.findall(r"pip install (.*service.*)", DOCKERFILE)
    assert install == "--require-hashes --requirement requirements/service.lock"
