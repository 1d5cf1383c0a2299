from collections.abc import Iterator

import pytest
from pytest_django import Settings

from tests.notify.receiver import Receiver, receiving
from tests.portal.conftest import translations_compiled  # noqa: F401  (a fixture)


@pytest.fixture
def receiver(settings: Settings) -> Iterator[Receiver]:
    """A receiver on this machine, which an operator has to allow."""
    settings.WEBHOOK_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    settings.WEBHOOK_ALLOW_HTTP = True
    settings.WEBHOOK_TIMEOUT = 3.0
    with receiving() as server:
        yield server
