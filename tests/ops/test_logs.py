"""What the processes write down, read as an operator's collector of logs reads it."""

import io
import json
import logging
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import time_machine
from django.conf import settings as configured
from django.contrib.auth.hashers import Argon2PasswordHasher
from django.db import connection
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from tests.ingest.reports import report
from tests.notify.receiver import receiving
from tests.people import PASSWORD, World
from tests.portal.scene import NOW, build_scene
from tests.services import ROOT, celery_worker, service_environment, web_server
from yoco.core.logs import logging_config
from yoco.notify.models import Endpoint
from yoco.portal.middleware import ReaderMiddleware

DOT_ENV = {"SECRET_KEY": "the-secret-key-of-this-test-" + "s" * 40, "KEY_PEPPERS": "1=the-pepper-of-this-test"}


def test_database_url() -> str:
    """The database of this very test, for processes beside it."""
    name = connection.settings_dict["NAME"]
    if connection.vendor == "sqlite":
        return f"sqlite:///{name}"
    return os.environ["TEST_DATABASE_URL"].rpartition("/")[0] + f"/{name}"


test_database_url.__test__ = False  # type: ignore[attr-defined]


class Browser:
    """A person's browser at a service that runs by itself."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=30)

    def form(self, page: str, fields: dict[str, Any], target: str = "") -> httpx.Response:
        """Posts a form of `page`, as its hidden field allows."""
        shown = self.http.get(page)
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', shown.text)
        assert token, (shown, shown.headers.get("location"))
        headers = {"Referer": str(self.http.base_url)}
        return self.http.post(target or page, data=fields | {"csrfmiddlewaretoken": token[1]}, headers=headers)

    def sign_in(self, email: str, password: str = PASSWORD) -> httpx.Response:
        return self.form("/accounts/login/", {"login": email, "password": password})


def wait_for(found: Callable[[], Any], seconds: float = 30) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return value


def lines_of(log: Path) -> list[dict[str, Any]]:
    lines = log.read_text().splitlines()
    # Celery prints these words beside its log when it is told to end.
    assert {line for line in lines if not line.startswith("{")} <= {"", "worker: Warm shutdown (MainProcess)"}
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
def test_requests_and_their_tasks_are_told_as_json_and_no_secret_is(server_directory: Path, redis_url: str) -> None:
    with time_machine.travel(NOW, tick=True):
        scene = build_scene()
    world = scene.world
    world.owner.password = Argon2PasswordHasher().encode(PASSWORD, "salt-of-this-test")  # as the service hashes
    world.owner.save(update_fields=["password"])
    environment = service_environment(
        test_database_url(),
        redis_url,
        LOG_FORMAT="json",
        EMAIL_URL="dummymail://",
        WEBHOOK_ALLOWED_NETWORKS="127.0.0.0/8",
        WEBHOOK_ALLOW_HTTP="true",
        TRUSTED_PROXIES="1",
        **DOT_ENV | {"KEY_PEPPERS": f"1={configured.KEY_PEPPERS[1]}"},  # the keys of the world were made with it
    )
    config = ["--config", "python:yoco.gunicorn_conf"]
    web, worker = web_server(server_directory, environment), celery_worker(server_directory, environment)
    web.command += config
    worker.command.insert(worker.command.index("worker"), "--quiet")  # no banner
    with receiving() as receiver, web, worker:
        url = f"http://127.0.0.1:{web.port}"
        machine = {"Authorization": f"Bearer {world.key_text}", "X-Request-Id": "from-the-proxy-41"}
        sent = report()
        taken = httpx.post(f"{url}/api/v1/reports?key={world.key_text}", json=[sent, {"id": "x"}], headers=machine)
        assert taken.headers["X-Request-Id"] == "from-the-proxy-41"
        forged = {"X-Request-Id": 'x" {"event": "forged"}', "Authorization": f"Bearer {world.stranger_key_text}x"}
        refused = httpx.post(f"{url}/api/v1/reports", json=[sent], headers=forged)
        assert refused.status_code == 401
        assert uuid.UUID(refused.headers["X-Request-Id"])

        person = Browser(url)
        assert person.sign_in(world.owner.email, "wrong " + PASSWORD).status_code == 200
        assert person.sign_in(world.owner.email).status_code == 302
        assert person.form("/accounts/reauthenticate/", {"password": PASSWORD}).status_code == 302
        cookie = person.http.cookies["sessionid"]
        new = reverse("portal:webhook_new", args=[world.organisation.pk])
        made = person.form(new, {"name": "Ledger", "url": receiver.url, "kinds": []})
        (secret,) = set(re.findall(r"whsec_[0-9A-Za-z+/=]+", made.text))
        endpoint = [world.organisation.pk, Endpoint.objects.get().pk]
        tested = person.form(
            reverse("portal:webhook", args=endpoint), {}, reverse("portal:webhook_test", args=endpoint)
        )
        frozen = [scene.contract.pk, scene.closed_year.pk, 1]
        statement, share = (reverse(f"portal:{name}", args=frozen) for name in ("statement", "statement_share"))
        shared = person.form(statement, {"days": 30}, share)
        (token,) = set(re.findall(r"/shared/([^/<\s]+)/", shared.text))
        assert httpx.get(f"{url}/shared/{token}/").status_code == 200
        assert httpx.get(f"{url}/shared/{token}/nothing").status_code == 404
        assert httpx.get(f"{url}/shared/{token[::-1]}/").status_code == 404
        wait_for(lambda: receiver.requests)
        wait_for(lambda: re.search(r"webhook_deliver\S* succeeded", worker.log.read_text()))
    assert receiver.verified(secret)

    written = web.log.read_text() + worker.log.read_text()
    secrets = [world.key_text, world.stranger_key_text, PASSWORD, cookie, secret, token, token[::-1], *DOT_ENV.values()]
    secrets += [connection.settings_dict.get("PASSWORD") or "-" * 9, httpx.URL(redis_url).password or "-" * 9]
    assert [known for known in secrets if known in written] == []

    lines = lines_of(web.log)
    requests = [line for line in lines if line["event"] == "request"]
    assert {"timestamp", "level", "logger", "method", "route", "status", "seconds", "client", "request_id"} <= (
        set.intersection(*map(set, requests))
    )
    (first,) = [line for line in requests if line["request_id"] == "from-the-proxy-41"]
    assert (first["route"], first["status"]) == ("/api/v1/reports", 200)
    assert (first["key"], first["organisation_id"]) == (world.key.lookup, str(world.organisation.pk))
    (told,) = [line for line in lines if line["event"] == "reports taken"]
    assert (told["created"], told["invalid"]) == ([sent["id"]], 1)
    assert told["runs"] == [sent["workload"]["run_id"]]
    assert told["request_id"] == "from-the-proxy-41"
    assert "forged" not in written
    (failed,) = [line for line in lines if line["event"] == "sign-in failed"]
    assert (failed["client"], failed["level"]) == ("127.0.0.1", "warning")

    (shown,) = [line for line in requests if line["route"] == "/shared/<str:token>/" and line["status"] == 200]
    assert "user_id" not in shown
    (asked,) = [line for line in requests if line["request_id"] == tested.headers["X-Request-Id"]]
    assert (asked["user_id"], asked["organisation_id"]) == (str(world.owner.pk), str(world.organisation.pk))
    # What the request queued, and what that queued in turn, is found by the same number.
    tasks = {line["task"] for line in lines_of(worker.log) if line.get("request_id") == asked["request_id"]}
    assert {"yoco.notify.tasks.event_announce", "yoco.notify.tasks.webhook_deliver"} <= tasks


@pytest.fixture
def collected() -> Iterator[io.StringIO]:
    """What this process writes, as a server with LOG_FORMAT=json would."""
    stream = io.StringIO()
    formatter = logging_config(form="json", level="INFO", stream="stdout", secrets=["hunter2-hunter2"])["formatters"]
    options = dict(formatter["line"])
    handler = logging.StreamHandler(stream)
    handler.setFormatter(options.pop("()")(**options))
    logging.getLogger().addHandler(handler)
    yield stream
    logging.getLogger().removeHandler(handler)


def test_a_fault_is_told_with_its_trace_and_without_the_path(
    world: World, collected: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: ReaderMiddleware, request: object) -> HttpResponse:
        raise RuntimeError(f"at postgresql://yoco:hunter2@db/yoco with {world.key_text} and hunter2-hunter2")

    token = "t0ken-" + "x" * 37
    monkeypatch.setattr(ReaderMiddleware, "__call__", fails)
    answer = Client(raise_request_exception=False).get(f"/shared/{token}/")
    assert answer.status_code == 500
    lines = [json.loads(line) for line in collected.getvalue().splitlines()]
    (fault,) = [line for line in lines if line["logger"] == "django.request"]
    assert "RuntimeError: at postgresql://[secret]@db/yoco with [secret] and [secret]" in fault["exception"]
    assert fault["request_id"] == answer["X-Request-Id"]
    for hidden in ("hunter2", world.key_text, token):
        assert hidden not in collected.getvalue()


def test_what_is_asked_all_day_is_told_only_when_it_fails(client: Client, db: None, collected: io.StringIO) -> None:
    client.get("/healthz")
    client.get("/static/css/base.css")
    assert collected.getvalue() == ""
    client.get("/static/nothing.css")
    assert json.loads(collected.getvalue())["status"] == 404


def test_the_standard_output_of_a_command_is_its_result(tmp_path: Path) -> None:
    environment = service_environment(f"sqlite:///{tmp_path}/none.sqlite3", LOG_FORMAT="json")
    script = "import logging; logging.getLogger('yoco').error('told'); print('result')"
    done = subprocess.run(
        [sys.executable, "manage.py", "shell", "--verbosity=0", "--command", script],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "result\n"
    assert json.loads(done.stderr)["event"] == "told"
