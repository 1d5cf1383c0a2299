"""The two probes, asked as an orchestrator asks them: over plain HTTP, without a session."""

import os
import socket
import subprocess
import sys

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client


@pytest.mark.django_db
def test_both_answer_plain_http_even_where_https_is_required(client: Client, settings):
    settings.SECURE_SSL_REDIRECT = True
    settings.REDIS_URL = ""
    assert client.get("/healthz").json() == {"status": "ok"}
    ready = client.get("/readyz")
    assert ready.status_code == 200
    assert ready.json() == {"status": "ok", "checks": {"database": "ok", "migrations": "ok"}}
    assert client.get("/accounts/login/").status_code == 301


@pytest.mark.django_db
def test_a_missing_migration_is_not_ready(client: Client):
    recorder = MigrationRecorder(connection)
    last = recorder.migration_qs.filter(app="core").order_by("-id").first()
    recorder.record_unapplied(last.app, last.name)
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert "manage.py migrate" in answer.json()["checks"]["migrations"]


@pytest.mark.django_db
def test_a_redis_that_is_gone_is_named_and_its_address_is_not(client: Client, settings):
    with socket.socket() as reserved:  # bound and not listening: nobody answers there
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        settings.REDIS_URL = f"redis://:hunter2@127.0.0.1:{port}/0"
        answer = client.get("/readyz")
    assert answer.status_code == 200, "pages and reports do without"
    assert answer.json()["checks"]["redis"] == "does not answer"
    assert "hunter2" not in answer.content.decode()
    assert str(port) not in answer.content.decode()


def test_a_process_lives_without_a_database(client: Client):
    # Without the django_db mark, pytest-django refuses every query.
    assert client.get("/healthz").status_code == 200


def test_a_database_that_is_gone_is_named_and_its_address_is_not():
    ask = (
        "import django; django.setup()\n"
        "from django.test import Client\n"
        "client = Client(headers={'host': 'localhost'})\n"
        "assert client.get('/healthz').status_code == 200\n"
        "answer = client.get('/readyz')\n"
        "print(answer.status_code, answer.content.decode())"
    )
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": "yoco.settings",
            "DATABASE_URL": f"postgresql://someone:hunter2@127.0.0.1:{port}/yoco",
            "REDIS_URL": "",
        }
        done = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("503 "), done.stderr
    assert '"database": "does not answer"' in done.stdout
    assert "hunter2" not in done.stdout
    assert str(port) not in done.stdout
