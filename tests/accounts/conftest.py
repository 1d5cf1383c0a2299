"""Fixtures of tests of accounts."""

from collections.abc import Iterator

import pytest
from django.core.cache import cache

from tools.translations import catalogues_compile


@pytest.fixture(autouse=True, scope="session")
def translations_compiled() -> None:
    """Pages and e-mails speak Spanish only with a compiled catalogue."""
    catalogues_compile()


@pytest.fixture(autouse=True)
def limits_forgotten() -> Iterator[None]:
    """Rate limits are counted in the cache, which outlives a test."""
    cache.clear()
    yield
    cache.clear()
