"""The clock stands still after the end of the first contract year; every test ends with books that verify."""

from collections.abc import Iterator

import pytest
import time_machine

from tests.credits.books import NOW
from tests.people import World


@pytest.fixture
def clock() -> Iterator[time_machine.Traveller]:
    with time_machine.travel(NOW, tick=True) as traveller:
        yield traveller


@pytest.fixture
def books(world: World, clock: time_machine.Traveller) -> Iterator[World]:
    """The world at `NOW`; at the end the whole ledger must hold, whatever the test did to it."""
    from yoco.credits.verify import ledger_verify

    yield world
    verification = ledger_verify()
    assert verification.holds, verification.broken
