"""Agent keys: two of a name for rotation, expiry, revocation at once, and the command that makes them."""

import datetime
from io import StringIO

import pytest
import time_machine
from django.core.management import CommandError, call_command
from django.utils import timezone

from tests.people import World
from yoco.accounts.key_services import agent_key_revoke, agent_key_rotate
from yoco.accounts.models import AgentKey, Scope
from yoco.accounts.services import agent_key_create, agent_key_verify
from yoco.core.models import AuditEntry
from yoco.core.problem import DomainError

DAY = datetime.timedelta(days=1)


def test_rotation_overlaps_and_then_the_old_key_ends(world: World) -> None:
    successor, text = agent_key_rotate(key=world.key, actor=world.owner, overlap=DAY)
    assert agent_key_verify(world.key_text) == world.key
    assert agent_key_verify(text) == successor
    assert (successor.contract, successor.scope, successor.name) == (world.contract, "ingest", "agent")
    with time_machine.travel(timezone.now() + DAY + datetime.timedelta(seconds=1)):
        assert agent_key_verify(world.key_text) is None
        assert agent_key_verify(text) == successor
    assert AuditEntry.objects.get(action="key.rotated").data["successor"] == successor.lookup


def test_rotation_never_lengthens_a_life(world: World) -> None:
    soon = timezone.now() + datetime.timedelta(hours=1)
    AgentKey.objects.filter(pk=world.key.pk).update(expires_at=soon)
    agent_key_rotate(key=world.key, actor=world.owner, overlap=DAY)
    world.key.refresh_from_db()
    assert world.key.expires_at == soon


def test_a_third_live_key_of_a_name_is_refused(world: World) -> None:
    successor, _ = agent_key_rotate(key=world.key, actor=world.owner)
    with pytest.raises(DomainError, match="Two keys"):
        agent_key_rotate(key=successor, actor=world.owner)
    agent_key_revoke(key=world.key, actor=world.owner)
    agent_key_rotate(key=successor, actor=world.owner)
    with pytest.raises(DomainError, match="has ended"):
        agent_key_rotate(key=world.key, actor=world.owner)


def test_other_names_scopes_and_contracts_do_not_count(world: World) -> None:
    agent_key_rotate(key=world.key, actor=world.owner)
    for name, scope, contract in (("other", Scope.INGEST, world.contract), ("agent", Scope.READ, None)):
        agent_key_create(organisation=world.organisation, contract=contract, scope=scope, name=name, actor=world.owner)


def test_revocation_is_at_once_and_once(world: World) -> None:
    agent_key_revoke(key=world.key, actor=world.owner, reason="leaked")
    agent_key_revoke(key=world.key, actor=world.owner, reason="leaked")
    assert agent_key_verify(world.key_text) is None
    assert AuditEntry.objects.filter(action="key.revoked").count() == 1


def test_a_key_that_has_ended_before_it_begins_is_refused(world: World) -> None:
    with pytest.raises(DomainError, match="later expiry"):
        agent_key_create(
            organisation=world.organisation,
            contract=world.contract,
            scope=Scope.INGEST,
            name="late",
            actor=world.owner,
            expires_at=timezone.now(),
        )


def test_last_use_is_noted_at_most_once_a_minute(world: World) -> None:
    with time_machine.travel(timezone.now(), tick=False) as clock:
        first = timezone.now()
        agent_key_verify(world.key_text)
        clock.shift(30)
        agent_key_verify(world.key_text)
        world.key.refresh_from_db()
        assert world.key.last_used_at == first
        clock.shift(31)
        agent_key_verify(world.key_text)
        world.key.refresh_from_db()
        assert world.key.last_used_at == timezone.now()


def test_the_command_prints_a_key_that_works(world: World) -> None:
    out = StringIO()
    call_command("agent_key_create", "ACME-1", "--name", "cluster", "--expires-in-days", "30", stdout=out)
    key = agent_key_verify(out.getvalue().strip())
    assert key is not None
    assert (key.name, key.contract, key.scope) == ("cluster", world.contract, "ingest")
    assert key.expires_at is not None


def test_the_command_says_what_is_wrong(world: World) -> None:
    with pytest.raises(CommandError, match=r"no contract NONE-1\. Known: ACME-1, OTHER-1") as raised:
        call_command("agent_key_create", "NONE-1")
    assert raised.value.returncode == 2
    with pytest.raises(CommandError, match="1 or more"):
        call_command("agent_key_create", "ACME-1", "--expires-in-days", "0")
    call_command("agent_key_create", "ACME-1", stdout=StringIO())
    with pytest.raises(CommandError, match="Two keys"):
        call_command("agent_key_create", "ACME-1", stdout=StringIO())
