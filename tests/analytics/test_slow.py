"""From an agent's heartbeats to a slow workload on the page, through the API and the page."""

import datetime
import json
from collections.abc import Iterator
from typing import Any

import pytest
import time_machine
from django.test import Client

from tests.analytics.fleet import watch
from tests.guarantee.facts import START, at, evidence, incident
from tests.people import World
from yoco.guarantee.analytics import paces
from yoco.guarantee.analytics.selectors import year_analytics
from yoco.guarantee.placements import placements_refresh
from yoco.incidents.models import Run, StepHour

pytestmark = pytest.mark.django_db
NOW = at(60)
WORKLOAD = {"run_id": "pretraining", "name": "Pre-training", "gpus": 2048, "gpus_per_node": 8}


@pytest.fixture(autouse=True)
def now() -> Iterator[Any]:
    with time_machine.travel(NOW, tick=False):
        yield


class Agent:
    """Tells of one run as an agent does."""

    def __init__(self, world: World) -> None:
        self._client, self._key = Client(), world.key_text
        self.step, self.hour = 0, 0.0

    def beat(self, *, boot: int = 1) -> None:
        answer = self._client.post(
            "/api/v1/heartbeats",
            json.dumps(
                {
                    "agent_id": "coordinator",
                    "boot_id": f"00000000-0000-4000-8000-{boot:012}",
                    "seq": 0,
                    "run_id": "pretraining",
                    "step": self.step,
                    "at": (START + datetime.timedelta(hours=self.hour)).isoformat(),
                    "workload": WORKLOAD,
                }
            ),
            content_type="application/json",
            headers={"Authorization": f"Bearer {self._key}"},
        )
        assert answer.status_code == 200, answer.content

    def train(self, hours: int, *, step_seconds: int, boot: int = 1) -> None:
        """A heartbeat every twenty minutes."""
        for _ in range(3 * hours):
            self.step += 1200 // step_seconds
            self.hour += 1 / 3
            self.beat(boot=boot)


def page(client: Client, world: World, topic: str) -> str:
    client.force_login(world.viewer)
    answer = client.get(f"/contracts/{world.contract.pk}/years/{world.year.pk}/analytics/{topic}/")
    assert answer.status_code == 200
    return answer.content.decode()


def test_a_slow_stretch_is_on_the_page_with_its_evidence(client: Client, world: World) -> None:
    agent = Agent(world)
    agent.beat()
    agent.train(27, step_seconds=10)
    assert "it did not go slowly" in page(client, world, "recovery")
    agent.train(5, step_seconds=12)
    agent.train(4, step_seconds=10)
    assert StepHour.objects.count() == 37  # one an hour, and the word on the last hour's stroke
    told = page(client, world, "recovery")
    # 2,048 GPUs lost ten minutes in each of five hours; the hour of the change is part slow.
    (run,) = year_analytics(year=world.year, topics=("recovery",)).paces
    (slow,) = run.pace.slow
    assert run.pace.baseline_ms == 10_000
    assert slow.hours in (4, 5)
    assert run.lost_gpu_ms == 2048 * slow.lost_ms
    assert slow.lost_ms == pytest.approx(5 * 600_000, rel=0.1)
    assert "1 of 1 workload went slowly for a while and lost" in told
    assert "median of three is 1.10 times the baseline" in told
    assert 'id="figure-paces"' in told
    goodput = year_analytics(year=world.year, topics=("goodput",)).goodput
    assert goodput is not None
    assert goodput.fleet.badput["fail_slow"] == run.lost_gpu_ms
    assert goodput.fleet.total == goodput.fleet.productive + sum(goodput.fleet.badput.values())
    assert "Whether it ran slowly is known of 1 workload." in page(client, world, "goodput")
    csv = client.get(f"/contracts/{world.contract.pk}/years/{world.year.pk}/analytics/recovery/slow.csv").content
    assert csv.decode().splitlines()[0].startswith("run,hours,baseline_step_ms,since_at,until_at")


def test_a_coordinator_whose_clock_lags_is_heard(world: World) -> None:
    """The boots of a run share its hours, and each has a clock of its own."""
    agent = Agent(world)
    for boot, hour in ((1, 0.5), (1, 0.66), (2, 0.2), (2, 0.45), (2, 0.7)):
        agent.hour, agent.step = hour, agent.step + 60
        agent.beat(boot=boot)
    row = StepHour.objects.get()
    assert (row.first_at, row.last_at) == (
        START + datetime.timedelta(hours=0.2),
        START + datetime.timedelta(hours=0.7),
    )


def test_hours_that_an_incident_touches_do_not_count(client: Client, world: World) -> None:
    agent = Agent(world)
    agent.beat()
    agent.train(27, step_seconds=10)
    agent.train(4, step_seconds=20)
    agent.train(1, step_seconds=10)
    Run.objects.update(gpus=2048)
    # Something was wrong all along, from which the run came back.
    long = evidence(at(27)) | {"resumed_at": at(31)}
    row = incident(world.contract, at(27), run="pretraining", **long)
    placements_refresh(incident_ids=[row.pk])
    assert "it did not go slowly" in page(client, world, "recovery")


def test_step_times_that_tell_nothing_are_left_out(client: Client, world: World) -> None:
    agent = Agent(world)
    agent.beat()
    agent.hour = 2.0  # longer than an hour between two words
    agent.step = 10
    agent.beat()
    agent.hour, agent.step = 2.1, 2**62  # more than a step a millisecond
    agent.beat()
    agent.hour, agent.step = 2.2, 20  # back to a checkpoint
    agent.beat()
    agent.hour = 2.3  # the same step again is no news of one
    agent.beat()
    assert not StepHour.objects.exists()
    agent.hour, agent.step = 2.4, 30
    agent.beat()
    row = StepHour.objects.get()
    # Since the first word of step 20.
    assert (row.steps, row.took_ms) == (10, 720_000)
    agent.hour, agent.step = 2.35, 29  # late, and known already
    agent.beat()
    agent.hour, agent.step = 2.5, 500
    agent.beat(boot=2)  # of another boot nothing was known before
    row.refresh_from_db()
    assert (row.steps, row.took_ms) == (10, 720_000)
    assert "Not enough data: no watched workload has told its steps for 27 hours" in page(client, world, "recovery")


def test_of_many_long_runs_the_largest_are_looked_at(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, gpus in (("small", 8), ("large", 64)):
        Run.objects.create(contract=world.contract, run_id=name, gpus=gpus, gpus_per_node=8)
        watch(world.contract, name, 0, 50)
    assert "largest workload" not in page(client, world, "recovery")
    monkeypatch.setattr(paces, "MOST_HOURS", 60)
    assert "Only the largest workload is looked at." in page(client, world, "recovery")
    assert [each.run.name for each in year_analytics(year=world.year, topics=("recovery",)).paces] == ["large"]
