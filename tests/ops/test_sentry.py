"""Faults told to a server that speaks Sentry's protocol, on loopback: what arrives there, and what must not."""

import gzip
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import brotli
import pytest

from tests.services import ROOT, service_environment

SECRETS = {
    "token": "t0ken-" + "x" * 37,
    "key": "yoco_ingest_" + "a" * 12 + "_" + "b" * 38,
    "cookie": "session-of-somebody",
    "password": "correct horse battery staple",
    "person": "olivia@example.com",
    "pepper": "the-pepper-of-this-test",
}
UNPACK = {"gzip": gzip.decompress, "br": brotli.decompress, None: bytes}
SCRIPT = """
import sys, django
django.setup()
import sentry_sdk
from django.test import Client
from yoco.notify.tasks import mail_send
from yoco.portal.middleware import ReaderMiddleware

token, key, cookie, password, person, pepper = sys.argv[1:]

def fails(self, request):
    local = password
    raise RuntimeError(f"with {key} and {pepper} at {token and '/shared/' + token + '/'}")

ReaderMiddleware.__call__ = fails
client = Client(raise_request_exception=False, headers={"host": "localhost", "authorization": f"Bearer {key}"})
client.cookies["sessionid"] = cookie
answer = client.post(f"/shared/{token}/?key={key}", {"login": person, "password": password})
mail_send.delay(person)
sentry_sdk.flush(10)
print(answer.status_code, answer["X-Request-Id"])
"""


@pytest.fixture
def envelopes() -> Iterator[tuple[str, list[bytes]]]:
    got: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append(UNPACK[self.headers["content-encoding"]](body))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://publickey@127.0.0.1:{server.server_address[1]}/1", got
    server.shutdown()
    server.server_close()
    thread.join(5)


def run(script: str, tmp_path: Path, **environment: str) -> str:
    given = service_environment(
        f"sqlite:///{tmp_path}/none.sqlite3", KEY_PEPPERS=f"1={SECRETS['pepper']}", **environment
    )
    command = [sys.executable, "-c", script, *SECRETS.values()]
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_fault_arrives_without_anything_personal(tmp_path: Path, envelopes: tuple[str, list[bytes]]) -> None:
    dsn, got = envelopes
    status, number = run(SCRIPT, tmp_path, SENTRY_DSN=dsn, SENTRY_ENVIRONMENT="staging").split()
    assert status == "500"
    everything = b"\n".join(got).decode()
    assert [name for name, secret in SECRETS.items() if secret in everything] == []
    events = [
        json.loads(line)
        for envelope in got
        for header, line in zip(envelope.splitlines()[1:], envelope.splitlines()[2:], strict=False)
        if b'"type":"event"' in header
    ]
    faults = {event["exception"]["values"][-1]["type"]: event for event in events}
    fault = faults["RuntimeError"]
    assert fault["exception"]["values"][-1]["value"] == "with [secret] and [secret] at /shared/[secret]/"
    assert "vars" not in fault["exception"]["values"][-1]["stacktrace"]["frames"][-1]
    assert (fault["environment"], fault["tags"]["request_id"]) == ("staging", number)
    assert faults["ValueError"]["transaction"] == "yoco.notify.tasks.mail_send"


def test_without_an_address_nothing_of_it_is_loaded(tmp_path: Path) -> None:
    assert run("import sys, django; django.setup(); print('sentry_sdk' in sys.modules)", tmp_path) == "False\n"
