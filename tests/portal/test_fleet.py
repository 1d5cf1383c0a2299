"""All contracts of a customer together, and all customers for account managers."""

import csv
import io
import json
import re
from collections.abc import Iterator

import pandas
import pytest
import time_machine
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from tests.analytics.fleet import MIGRATED_MS, NOW, RESTARTED_MS, WATCHED_HOURS, WITHOUT_MS, build, watch
from tests.guarantee.facts import at, evidence, incident
from tests.people import World, contract
from yoco.contracts.models import Contract, ContractYear
from yoco.guarantee.models import Placement
from yoco.guarantee.placements import placements_refresh
from yoco.incidents.models import Run

pytestmark = pytest.mark.django_db
HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def now() -> Iterator[None]:
    with time_machine.travel(NOW, tick=False):
        yield


@pytest.fixture
def second(world: World) -> Contract:
    """Acme's first contract in euros, its second in dollars with one failure, and the stranger's with another."""
    build(world.contract)
    row, _, _ = contract(world.organisation, "ACME-2")
    Contract.objects.filter(pk=row.pk).update(currency="USD", price_per_gpu_hour="4.00")
    placements_refresh(incident_ids=[incident(row, at(20), run="other").pk])
    Run.objects.filter(contract=row).update(gpus=16, gpus_per_node=8)
    watch(row, "other", 0, WATCHED_HOURS)
    stranger = world.stranger_contract
    placements_refresh(incident_ids=[incident(stranger, at(30), run="strange").pk])
    return row


def page(client: Client, world: World, address: str | None = None) -> str:
    answer = client.get(address or f"/organisations/{world.organisation.pk}/fleet/")
    assert answer.status_code == 200
    return answer.content.decode()


def rows(client: Client, address: str) -> list[dict[str, str]]:
    answer = client.get(address)
    assert answer.status_code == 200
    return list(csv.DictReader(io.StringIO(answer.content.decode())))


def test_contracts_add_up_and_currencies_do_not(client: Client, world: World, second: Contract) -> None:
    client.force_login(world.viewer)
    told = page(client, world)
    wasted = 5 * MIGRATED_MS + RESTARTED_MS
    assert f"2 contracts. Incidents wasted {wasted / HOUR_MS:,.3f} GPU-hours" in told
    # 4 migrations of 74.24 GPU-hours and a restart of 1,706.667 at 2.50; one migration at 4.00.
    assert "€5,009.07 wasted, €16,335.64 saved; US$296.96 wasted, US$6,534.26 saved." in told
    assert "Amounts of two currencies are never added." in told
    at_fleet = f"/organisations/{world.organisation.pk}/fleet/"
    contracts = rows(client, f"{at_fleet}contracts.csv")
    assert [(row["customer"], row["contract"]) for row in contracts] == [("Acme", "ACME-1"), ("Acme", "ACME-2")]
    terms = rows(client, f"{at_fleet}terms.csv")
    for side, expected in (("wasted", wasted), ("without", 5 * WITHOUT_MS + RESTARTED_MS)):
        by_term = sum(int(row[f"{side}_{basis}_gpu_ms"] or 0) for row in terms for basis in ("measured", "estimated"))
        assert by_term == expected == sum(int(row[f"{side}_gpu_ms"]) for row in contracts)
    money = pandas.read_parquet(io.BytesIO(client.get(f"{at_fleet}money.parquet").content)).set_index("currency")
    assert list(money.index) == ["EUR", "USD"]
    assert money.loc["USD", "wasted_money"] == "296.96"


def test_rates_and_goodput_are_those_of_all_node_hours(client: Client, world: World, second: Contract) -> None:
    client.force_login(world.viewer)
    told = page(client, world)
    # Six failures in ten days of 256 and of 2 nodes.
    assert f"{6 / 2.58:.2f} failures per 1,000 node-days" in told
    assert "All workloads:" in told
    rates = rows(client, f"/organisations/{world.organisation.pk}/fleet/rates.csv")
    assert [int(row["failures"]) for row in rates] == [5, 1]
    own = client.get(
        f"/contracts/{world.contract.pk}/years/{world.year.pk}/analytics/goodput/runs.csv"
    ).content.decode()
    (run,) = csv.DictReader(io.StringIO(own))
    for name in ("goodput_share", "available_share", "renewal_share", "linear_share"):
        assert float(rates[0][name]) == pytest.approx(float(run[name]))
    figures = re.findall(r'<script id="figure-([a-z_]+)" type="application/json">(.*?)</script>', told)
    assert {name for name, _ in figures} == {"contracts", "terms", "rates", "weekly", "node_rates"}
    for _name, figure in figures:
        assert json.loads(figure)["data"]


def test_overlapping_incidents_are_merged(client: Client, world: World) -> None:
    build(world.contract)
    before = Placement.objects.count()
    # Noticed while the job stood still already, over at the same time: nothing is lost twice.
    instants = dict.fromkeys(("started_at", "detected_at", "quiesced_at", "spare_ready_at"), at(10.01))
    instants |= {"state_moved_at": at(10.02), "state_verified_at": at(10.03), "resumed_at": at(10.036)}
    again = incident(world.contract, **(evidence(at(10.01)) | instants))
    placements_refresh(incident_ids=[again.pk])
    assert Placement.objects.count() == before + 1
    client.force_login(world.viewer)
    (row,) = rows(client, f"/organisations/{world.organisation.pk}/fleet/contracts.csv")
    own = rows(client, f"/contracts/{world.contract.pk}/years/{world.year.pk}/analytics/waste/fleet.csv")
    assert row["wasted_gpu_ms"] == own[0]["wasted_gpu_ms"]
    assert int(row["wasted_gpu_ms"]) < 5 * MIGRATED_MS + RESTARTED_MS


def test_everyone_sees_their_own_and_account_managers_all(client: Client, world: World, second: Contract) -> None:
    client.force_login(world.stranger)
    assert client.get(f"/organisations/{world.organisation.pk}/fleet/").status_code == 404
    assert client.get(f"/organisations/{world.organisation.pk}/fleet/contracts.csv").status_code == 404
    assert client.get("/fleet/").status_code == 404
    assert client.get("/fleet/contracts.csv").status_code == 404
    client.force_login(world.account_manager)
    assert "3 contracts. Incidents wasted" in page(client, world, "/fleet/")
    found = rows(client, "/fleet/contracts.csv")
    assert {row["customer"] for row in found} == {"Acme", "Other"}
    assert client.get("/fleet/nothing.csv").status_code == 404
    assert 'href="/fleet/"' in client.get("/desk/").content.decode()


def test_few_queries_whatever_the_number_of_contracts(
    client: Client, world: World, second: Contract, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    client.force_login(world.viewer)
    with django_assert_max_num_queries(12):
        page(client, world)
    client.force_login(world.account_manager)
    with django_assert_max_num_queries(12):
        page(client, world, "/fleet/")


def test_a_year_that_is_over_counts_only_if_asked_for(client: Client, world: World, second: Contract) -> None:
    client.force_login(world.viewer)
    later = ContractYear.objects.get(contract=second).ends_at
    with time_machine.travel(later, tick=False):
        client.force_login(world.viewer)
        told = page(client, world)
        assert "No contract year is running</h2>" in told
        assert '?years=all">Look at all years</a>' in told
        told = page(client, world, f"/organisations/{world.organisation.pk}/fleet/?years=all")
        assert "2 contracts. Incidents wasted" in told
        assert "contracts.csv?years=all" in told


def test_without_incidents_price_or_gpus_nothing_is_invented(client: Client, world: World) -> None:
    Contract.objects.update(price_per_gpu_hour=None)
    client.force_login(world.viewer)
    told = page(client, world)
    assert "1 contract. No incident so far." in told
    assert "1 contract has no price per GPU-hour and is not in it." in told
    assert "Not enough data" in told
    placements_refresh(incident_ids=[incident(world.contract, at(5), gpus=0).pk])
    Run.objects.update(gpus=0)
    watch(world.contract, "run-1", 0, 240)
    told = page(client, world)
    assert "1 of them met a workload that was not watched" in told
    for each in (r"\bNaN\b", r"\bnan\b", r"\binf\b", r"\bNone\b", r"-\d+\.\d+ GPU"):
        assert not re.search(each, told)
