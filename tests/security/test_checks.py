"""What `check --deploy` and the commands say about an installation that is not one for production."""

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings

from yoco.core.checks import production_secrets


def test_the_embedded_secret_and_a_shared_pepper_are_named() -> None:
    assert [found.id for found in production_secrets(None)] == ["yoco.E001"]
    with override_settings(SECRET_KEY="own" * 20, KEY_PEPPERS={1: "own" * 20}):
        assert [found.id for found in production_secrets(None)] == ["yoco.W001"]
    with override_settings(SECRET_KEY="own" * 20, KEY_PEPPERS={1: "another" * 9}):
        assert production_secrets(None) == []


@pytest.mark.django_db
def test_a_database_without_roles_says_so() -> None:
    if connection.vendor == "postgresql":
        pytest.skip("has roles")
    with pytest.raises(CommandError) as refused:
        call_command("database_roles", "--apply")
    assert refused.value.returncode == 2


def test_the_embedded_default_serves_loopback_only() -> None:
    assert set(settings.ALLOWED_HOSTS) <= {"127.0.0.1", "localhost", "[::1]", "testserver"}
