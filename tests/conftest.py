"""Shared fixtures; each file of `pytest_plugins` says what it brings."""

from pathlib import Path

pytest_plugins = ["tests.append_only_flush", "tests.people"]

Path(__file__).resolve().parent.parent.joinpath("build").mkdir(exist_ok=True)
