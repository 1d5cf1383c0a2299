"""What everything stands on: tenants cannot see each other, raw rows cannot change, days begin where they should."""

import datetime
from zoneinfo import ZoneInfo, available_timezones

import pytest
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, connection, transaction
from django.http import Http404

from tests.people import World
from yoco.accounts.access import access
from yoco.accounts.keys import key_parse
from yoco.accounts.models import Membership, Role
from yoco.accounts.services import agent_key_verify
from yoco.contracts.models import Contract
from yoco.core.clock import local_midnight
from yoco.core.models import AuditEntry


def test_a_contract_exists_only_for_its_organisation(world: World) -> None:
    for person in (world.owner, world.team_mate, world.viewer, world.account_manager):
        assert access(Contract.objects.all(), principal=person, pk=world.contract.pk) == world.contract
    with pytest.raises(Http404):
        access(Contract.objects.all(), principal=world.stranger, pk=world.contract.pk)
    with pytest.raises(Http404):
        access(Contract.objects.all(), principal=world.owner, pk="not-a-uuid")


def test_a_role_that_is_too_low_is_refused_and_a_revoked_member_sees_nothing(world: World) -> None:
    with pytest.raises(PermissionDenied):
        access(Contract.objects.all(), principal=world.viewer, minimum=Role.ADMIN, pk=world.contract.pk)
    Membership.objects.filter(user=world.viewer).update(revoked_at=datetime.datetime.now(datetime.UTC))
    with pytest.raises(Http404):
        access(Contract.objects.all(), principal=world.viewer, pk=world.contract.pk)


def test_an_ingest_key_reads_nothing(world: World) -> None:
    with pytest.raises(Http404):
        access(Contract.objects.all(), principal=world.key, pk=world.contract.pk)


def test_a_key_verifies_and_a_changed_one_does_not(world: World) -> None:
    assert agent_key_verify(world.key_text) == world.key
    parts = key_parse(world.key_text)
    assert parts is not None
    assert key_parse(world.key_text[:-1] + ("0" if world.key_text[-1] != "0" else "1")) is None
    for wrong in ("", "yoco", world.key_text + "x", world.key_text.replace("ingest", "read"), "yoco_ingest_é_"):
        assert agent_key_verify(wrong) is None


@pytest.mark.parametrize("verb", ["UPDATE core_auditentry SET action = 'x'", "DELETE FROM core_auditentry"])
def test_an_audit_row_cannot_change(world: World, verb: str) -> None:
    assert AuditEntry.objects.exists()
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(verb)


def test_an_audit_table_cannot_be_truncated(world: World) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no TRUNCATE")
    connection.check_constraints()  # PostgreSQL truncates no table with pending checks
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("TRUNCATE core_auditentry")


def test_midnight_that_does_not_exist_begins_at_the_change() -> None:
    assert local_midnight(datetime.date(2018, 11, 4), "America/Sao_Paulo") == datetime.datetime(
        2018, 11, 4, 3, tzinfo=datetime.UTC
    )
    assert local_midnight(datetime.date(2026, 9, 1), "Europe/Madrid") == datetime.datetime(
        2026, 8, 31, 22, tzinfo=datetime.UTC
    )


@pytest.mark.parametrize("zone", sorted(available_timezones()))
def test_days_begin_at_their_first_instant_in_every_zone(zone: str) -> None:
    tz = ZoneInfo(zone)
    for month in range(1, 13):
        for day in (1, 14, 28):
            date = datetime.date(2027, month, day)
            start = local_midnight(date, zone)
            assert start.astimezone(tz).date() == date
            assert (start - datetime.timedelta(seconds=1)).astimezone(tz).date() < date
