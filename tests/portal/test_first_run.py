"""From no contract to the first heartbeat: what the first pages say, and the command that they print."""

import re
import shlex

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from agent import cli
from tests.people import World, sign_in_confirmed, user
from tests.portal.test_pages import text_of
from yoco.accounts.models import Role
from yoco.accounts.services import member_add, organisation_create


def first_run(world: World) -> str:
    return reverse("portal:first_run", args=[world.contract.pk])


def beat(key_text: str) -> int:
    body = {"agent_id": "node-1", "boot_id": "01890000-0000-7000-8000-000000000001", "seq": 0, "run_id": "llm-7b"}
    return (
        Client()
        .post(
            "/api/v1/heartbeats",
            {**body, "step": 1, "at": timezone.now().isoformat()},
            content_type="application/json",
            headers={"authorization": f"Bearer {key_text}"},
        )
        .status_code
    )


def test_home_leads_to_it_until_something_was_heard(client: Client, world: World) -> None:
    client.force_login(world.owner)
    home = client.get("/")
    assert first_run(world) in home.content.decode()
    page = text_of(client, first_run(world))
    assert "Waiting for the first heartbeat" in page
    assert "It has not been used yet." in page
    assert beat(world.stranger_key_text) == 200  # another contract's
    assert "Waiting for the first heartbeat" in text_of(client, first_run(world))
    assert beat(world.key_text) == 200
    page = text_of(client, first_run(world))
    for words in ("The first heartbeat has arrived", "llm-7b", "node-1"):
        assert words in page
    assert client.get("/")["Location"] == reverse("portal:year", args=[world.contract.pk, world.year.pk])


def test_the_printed_command_is_one_the_agent_takes(client: Client, world: World, settings) -> None:
    settings.SITE_URL = "https://yoco.example.com"
    sign_in_confirmed(client, world.owner)
    fields = {"name": "B", "scope": "ingest", "contract": str(world.contract.pk)}
    page = client.post(reverse("portal:key_create", args=[world.organisation.pk]), fields).content.decode()
    command = re.search(r"python -m agent (run.*?)</pre>", page, re.DOTALL)
    assert command is not None
    parsed = cli._parser().parse_args(shlex.split(command[1].replace("\\\n", " ")))
    assert (parsed.report_url, parsed.report_key_env) == ("https://yoco.example.com", "YOCO_AGENT_KEY")
    export = re.search(r"export YOCO_AGENT_KEY='(\S+?)'", page)
    assert export is not None
    assert beat(export[1]) == 200


def test_a_member_without_a_contract_and_without_an_organisation(client: Client, world: World) -> None:
    fresh = organisation_create(name="Fresh", actor=None)
    nina = user("nina@example.com")
    client.force_login(nina)
    assert "Ask an owner of your organisation" in text_of(client, "/")
    member_add(organisation=fresh, user=nina, role=Role.OWNER, actor=None)
    page = client.get("/").content.decode()
    assert "invite your team" in page
    assert reverse("portal:organisation", args=[fresh.pk]) in page


@pytest.mark.parametrize("name", ["portal:settings", "mfa_index", "portal:home"])
def test_personal_pages_take_few_queries(
    client: Client, world: World, django_assert_max_num_queries, name: str
) -> None:
    client.force_login(world.owner)
    with django_assert_max_num_queries(12):
        assert client.get(reverse(name)).status_code == 200


def test_pages_of_an_organisation_take_few_queries(client: Client, world: World, django_assert_max_num_queries) -> None:
    client.force_login(world.owner)
    organisation, key = world.organisation.pk, world.key.pk
    for url in (f"/organisations/{organisation}/", f"/organisations/{organisation}/keys/{key}/", first_run(world)):
        with django_assert_max_num_queries(12):
            assert client.get(url).status_code == 200
