"""What every test shares: which tests need which service, and what happens when it is missing.

With nothing running (`.venv/bin/pytest`) the suite uses SQLite and skips tests marked `postgres`, `redis` or `browser`.
`make test` starts everything and sets `YOCO_TEST_STRICT`, which turns such a skip into an error.
"""

import os
from pathlib import Path

import pytest

pytest_plugins = ["tests.append_only_flush", "tests.people", "tests.services", "tests.browser"]

TESTS = Path(__file__).parent
STRICT = os.environ.get("YOCO_TEST_STRICT") == "1"
DATABASE_FIXTURES = {"db", "transactional_db", "live_server", "django_db_reset_sequences"}


def missing_services() -> dict[str, str]:
    """Map each service marker whose service is missing here to the reason."""
    from tests.browser import find_chromium  # a plugin: pytest must be the first to import it

    missing = {}
    if not os.environ.get("TEST_DATABASE_URL"):
        missing["postgres"] = "TEST_DATABASE_URL is not set; `make test` starts a PostgreSQL"
    if not os.environ.get("TEST_REDIS_URL"):
        missing["redis"] = "TEST_REDIS_URL is not set; `make test` starts a Redis"
    if not find_chromium():
        missing["browser"] = "chromium is not installed; `make test` says how"
    return missing


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark by place and by fixtures, so that `tools.suite` can choose its passes with -m."""
    for item in items:
        if TESTS / "agent" in item.path.parents:
            item.add_marker(pytest.mark.agent)
        uses_database = item.get_closest_marker("django_db") or DATABASE_FIXTURES & set(
            getattr(item, "fixturenames", ())
        )
        if uses_database or getattr(getattr(item, "cls", None), "databases", None):
            item.add_marker(pytest.mark.database)
    # Last in each process: from the first browser on an event loop runs in its thread, and Django's connections to the
    # database are others from then on. What was open before stays open, and holds what it holds.
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)


@pytest.fixture(autouse=True)
def _limits_begin_anew() -> None:
    """All tests sign in from one address, which the limits of the tests before would shut out."""
    from django.core.cache import cache

    cache.clear()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, reason in missing_services().items():
        if item.get_closest_marker(marker):
            if STRICT:
                pytest.fail(f"needs {marker}: {reason}", pytrace=False)
            pytest.skip(reason)
