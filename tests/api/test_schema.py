"""The committed OpenAPI schema is the code's, it is valid, and its documentation needs nobody else's server."""

import re
from io import StringIO
from pathlib import Path

from django.core.management import call_command
from django.test import Client

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "openapi.yaml"


def test_the_committed_schema_is_current() -> None:
    out = StringIO()
    call_command("spectacular", "--validate", "--fail-on-warn", stdout=out)
    assert out.getvalue().rstrip() == SCHEMA.read_text().rstrip(), (
        "The API changed. Look at the difference, then: .venv/bin/python manage.py spectacular --file docs/openapi.yaml"
    )


def test_it_is_served(client: Client) -> None:
    response = client.get("/api/v1/schema")
    assert response.status_code == 200
    assert b"/api/v1/reports" in response.content


def test_the_docs_load_nothing_from_elsewhere_and_nothing_inline(client: Client) -> None:
    response = client.get("/api/v1/docs")
    assert response.status_code == 200
    page = response.content.decode()
    assert "<style" not in page
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(addresses) == 5
    for address in addresses:
        assert address.startswith("/"), address
        loaded = client.get(address.replace("&amp;", "&"))
        assert loaded.status_code == 200, address
    assert "script-src 'self'" in response["Content-Security-Policy"]
