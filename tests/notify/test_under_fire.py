"""Worker, beat, Redis and PostgreSQL, each killed in the middle of each kind of work: in the end everything once."""

from collections.abc import Iterator

import pytest

from tests.notify.stage import ACTIVITIES, Stage, once, staged, until, waiting

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("under_fire"),
]
VICTIMS = ["worker", "beat", "redis", "postgres"]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with staged() as stage:
        yield stage


@pytest.fixture(scope="module")
def turns() -> list[str]:
    """Who had its turn on this stage."""
    return []


@pytest.mark.parametrize("victim", VICTIMS)
def test_killed_in_the_middle_of_anything(stage: Stage, turns: list[str], victim: str) -> None:
    turns.append(victim)
    for activity in ACTIVITIES:
        activity(stage, victim, len(turns) - 1)
    until("not all is delivered", lambda: waiting(stage) == 0)
    once(stage, len(turns))
