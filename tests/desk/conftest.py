"""Fixtures of page tests."""

import pytest

from tests.portal.scene import scene  # noqa: F401  (a fixture)
from tools.translations import catalogues_compile


@pytest.fixture(autouse=True, scope="session")
def translations_compiled() -> None:
    """Pages speak Spanish only with a compiled catalogue; a fresh clone has none until `make translations`."""
    catalogues_compile()
