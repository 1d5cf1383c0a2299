"""The whole API against what its schema allows and what not: no answer outside the schema, and never a 500."""

from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from pytest_django.live_server_helper import LiveServer
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.people import build_world
from yoco.accounts.models import Scope
from yoco.accounts.services import agent_key_create

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
# The committed schema is the served one: test_schema.py.
schema = schemathesis.openapi.from_path(Path(__file__).resolve().parents[2] / "docs" / "openapi.yaml")


@pytest.fixture
def keys(live_server: LiveServer) -> dict[str, str]:
    """The key for each method."""
    world = build_world()
    _, reader = agent_key_create(organisation=world.organisation, scope=Scope.READ, name="reader", actor=world.owner)
    return {"POST": world.key_text, "GET": reader}


@pytest.mark.slow
@schema.parametrize()
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)
def test_every_operation_keeps_to_the_schema(
    case: schemathesis.Case, keys: dict[str, str], live_server: LiveServer
) -> None:
    if case.method not in keys:
        return  # methods that the API does not have: test_read.py
    headers = {"Authorization": f"Bearer {keys[case.method]}"}
    case.call_and_validate(base_url=live_server.url, headers=headers, checks=CHECKS)
