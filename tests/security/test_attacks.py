"""What an attacker tries besides asking for other people's objects."""

import base64
import csv
import io
import json
import time
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client, RequestFactory

from tests.people import World, sign_in_confirmed
from tests.portal.scene import NOW, Scene, report
from tests.security.asking import Asker, routes
from yoco.accounts.models import AgentKey, Membership, Role, Scope, User
from yoco.accounts.services import agent_key_create, reader_update
from yoco.api.errors import server_error
from yoco.contracts.models import Contract, Order
from yoco.core.downloads import attachment, cell
from yoco.guarantee.models import ImportFile
from yoco.guarantee.reviews import dispute_raise, exclusion_propose
from yoco.guarantee.services import reports_accept
from yoco.incidents.models import Incident
from yoco.portal.views import statements

SCRIPT = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
FORMULA = '=HYPERLINK("https://evil.example","click")'


def signed_in(person: User, **more: Any) -> Client:
    client = Client(raise_request_exception=False, **more)
    client.force_login(person)
    return client


def sent(scene: Scene, **changes: Any) -> Incident:
    """An incident of Acme's running year whose free text an attacker chose."""
    started = scene.running_year.starts_at.replace(day=25)
    body = report(started, **changes)
    outcome = reports_accept(contract=scene.contract, key=None, reports=[body], received_at=NOW)
    assert [one.status for one in outcome.results] == ["created"], outcome.results
    return Incident.objects.get(public_id=body["incident_id"])


# ── Text that somebody else's browser or spreadsheet would run


def test_no_free_text_becomes_markup(scene: Scene) -> None:
    """Names, notes, reports, contract and order numbers: on every page that anybody can open."""
    world = scene.world
    incident = sent(
        scene,
        workload={"run_id": SCRIPT, "name": SCRIPT, "agent_version": SCRIPT[:40], "gpu_model": SCRIPT},
        where={"node": SCRIPT, "gpu_uuid": SCRIPT},
        trigger={"detail": {SCRIPT: SCRIPT}},
        spare={"node": SCRIPT},
        attempts=[{"at": NOW.isoformat(), "outcome": SCRIPT, "reason": SCRIPT}],
        agent_id=SCRIPT,
    )
    dispute_raise(incident=incident, text=SCRIPT, actor=world.owner)
    exclusion_propose(incident=scene.rolled_back, reason="user_error", note=SCRIPT, actor=world.account_manager)
    reader_update(user=world.owner, name=SCRIPT)
    Contract.objects.filter(pk=scene.contract.pk).update(name=SCRIPT, number=SCRIPT[:40])
    world.organisation.name = SCRIPT
    world.organisation.save(update_fields=["name"])
    Order.objects.update(number=SCRIPT[:40])
    AgentKey.objects.update(name=SCRIPT)
    scene.without_loss = incident  # so that the pages of an incident are this one's
    everything = routes_of_incident(scene)
    seen = 0
    for person in (world.owner, world.account_manager):
        client = signed_in(person)
        for route in everything:
            answer = client.get(route.path)
            kind = answer.get("Content-Type", "")
            if kind.startswith("text/html"):
                text = answer.getvalue().decode()
                for begin in ("<script>alert", "<img src=x", "onerror=alert(1)>"):
                    assert begin not in text, route.name
                seen += "&lt;script&gt;alert" in text or "\\u003Cscript" in text
            assert answer.status_code < 500, route.name
    assert seen > 15


def routes_of_incident(scene: Scene) -> list[Any]:
    """Routes without raising a second objection to the same incident."""
    kept, scene.without_loss = scene.without_loss, Incident.objects.exclude(disputes__isnull=False).earliest("pk")
    try:
        found = routes(scene)
    finally:
        scene.without_loss = kept
    return found


def test_a_spreadsheet_runs_nothing_that_somebody_wrote(scene: Scene) -> None:
    world = scene.world
    sent(scene, workload={"run_id": FORMULA, "name": FORMULA}, where={"node": FORMULA})
    Order.objects.update(number=FORMULA[:40])
    file = ImportFile.objects.create(
        contract=scene.contract,
        name="outages.csv",
        sha256="0" * 64,
        content=f"started_at,run_id,gpus\n{FORMULA},{FORMULA},8\n".encode(),
        options={"format": "csv"},
        uploaded_by=world.account_manager,
    )
    paths = [route.path for route in routes(scene) if route.path.endswith(".csv")]
    paths += [f"/desk/imports/{file.pk}/rejects.csv"]
    paths += [path.replace(str(scene.closed_year.pk), str(scene.running_year.pk)) for path in paths]
    year = f"/contracts/{scene.contract.pk}/years/{scene.running_year.pk}/analytics"
    paths += [f"{year}/{topic}/{code}.csv" for topic in ("rates", "recovery", "goodput", "waste") for code in CODES]
    client, owner, opened = signed_in(world.account_manager), signed_in(world.owner), 0
    for path in paths:
        answer = client.get(path)
        if answer.status_code == 403:  # only the organisation's own people read its audit log there
            answer = owner.get(path)
        assert answer.status_code in (200, 404)
        if answer.status_code == 200:
            opened += 1
            rows = csv.reader(io.StringIO(answer.getvalue().decode()))
            assert not [value for row in rows for value in row if cell(value) != value], path
    assert opened > 6


CODES = ["nodes", "terms", "by_signal", "signals", "months", "causes", "phases", "runs", "workloads", "kinds"]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("=1+1", "'=1+1"),
        ("+1;cmd", "'+1;cmd"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        (" =1", "' =1"),
        ("-12.50", "-12.50"),
        ("+7", "+7"),
        ("node-1", "node-1"),
        (-3, -3),
        (None, None),
    ],
)
def test_only_what_begins_like_a_formula_is_changed(value: object, written: object) -> None:
    assert cell(value) == written


def test_a_download_keeps_its_name_whatever_the_contract_is_called(scene: Scene) -> None:
    client = signed_in(scene.world.owner)
    for number in ('A"; filename="evil.exe', "A\r\nSet-Cookie: a=b", "../../etc/passwd", "Ñandú/7", "   "):
        Contract.objects.filter(pk=scene.contract.pk).update(number=number)
        for route in routes_with_files(scene):
            answer = client.get(route)
            assert answer.status_code == 200, (number, route)
            header = answer["Content-Disposition"]
            name = header.removeprefix('attachment; filename="').removesuffix('"')
            assert header == f'attachment; filename="{name}"'
            assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"), name
            assert not name.startswith((".", "-"))
            assert "Set-Cookie" not in answer.headers
            assert answer["X-Content-Type-Options"] == "nosniff"


def routes_with_files(scene: Scene) -> list[str]:
    contract, year = f"/contracts/{scene.contract.pk}", f"/contracts/{scene.contract.pk}/years/{scene.closed_year.pk}"
    return [
        f"{contract}/credits/account.csv",
        f"{contract}/credits/ledger.json",
        f"{year}/export.json",
        f"{year}/statements/1.csv",
        f"{year}/statements/1.json",
        f"{year}/analytics/waste/terms.csv",
    ]


def test_the_name_of_a_download_is_plain() -> None:
    from django.http import HttpResponse

    made = attachment(HttpResponse(), 'x"\r\ny', 7, "a.csv")
    assert made["Content-Disposition"] == 'attachment; filename="x-y-7-a.csv"'


# ── Requests that are not what they say


def test_no_form_is_taken_from_another_site(scene: Scene) -> None:
    """Every route that takes POST, as those who may do most, without the token of the form."""
    everything = routes(scene)
    taken = []
    for person in (scene.world.owner, scene.world.account_manager):
        client = signed_in(person, enforce_csrf_checks=True)
        for route in everything:
            if route.api:
                continue  # the doors for agents take keys, never a session; reading takes no POST
            if route.name.startswith("saml_"):
                continue  # an identity provider sends people here with a form of its own, which it has signed
            if route.name == "portal:mail_stop":
                continue  # one click in a mail program (RFC 8058): the signed address is all that it has
            status = client.post(route.path, {"decision": "confirm"}).status_code
            if status not in (403, 405):
                taken.append((route.name, status))
    assert not taken


def test_a_session_is_no_key(scene: Scene) -> None:
    """What a browser sends by itself opens no door for agents."""
    client = signed_in(scene.world.owner)
    for path in ("/api/v1/reports", "/api/v1/heartbeats"):
        assert client.post(path, [{}], content_type="application/json").status_code == 401


def test_a_method_is_the_one_of_the_request_line(scene: Scene) -> None:
    client = signed_in(scene.world.owner)
    path = f"/api/v1/contracts/{scene.contract.pk}"
    for header in ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"):
        assert client.post(path, headers={header: "GET"}).status_code == 405
        assert client.get(path, {"_method": "DELETE"}, headers={header: "DELETE"}).status_code == 200
    assert client.post(path, {"_method": "DELETE"}).status_code == 405
    assert client.generic("TRACE", path).status_code == 405


def test_no_address_writes_a_line_of_its_own_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    request = RequestFactory().get("/api/v1/x%0aERROR%20all%20is%20lost%1b[31m")
    assert "\n" in request.path
    assert server_error(request).status_code == 500
    (record,) = [one for one in caplog.records if "failed" in one.getMessage()]
    assert "\n" not in record.getMessage()
    assert "lost" not in record.getMessage()  # of an address the log has its pattern, if it matches one


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "///evil.example",
        "https:evil.example",
        "javascript:alert(1)",
        "\thttps://evil.example",
        "https://testserver@evil.example/",
        "https://testserver.evil.example/",
    ],
)
def test_nobody_is_sent_elsewhere(world: World, target: str) -> None:
    client = signed_in(world.owner)
    answers = [
        client.post("/preferences/", {"next": target, "theme": "dark"}),
        client.get("/accounts/login/", {"next": target}),
        client.post("/accounts/logout/", {"next": target}),
    ]
    for answer in answers:
        assert answer.status_code == 302
        assert "evil" not in answer["Location"]
        assert "javascript" not in answer["Location"]


def test_settings_take_no_more_than_they_show(world: World) -> None:
    """Mass assignment: rights and addresses are not among the fields."""
    before = User.objects.values("email", "is_account_manager", "is_superuser", "is_active", "password")
    known = before.get(pk=world.owner.pk)
    answer = signed_in(world.owner).post(
        "/settings/",
        {
            "name": "Olivia",
            "language": "en",
            "time_zone": "UTC",
            "theme": "auto",
            "email": "other@example.com",
            "is_account_manager": "on",
            "is_superuser": "on",
            "password": "x",
        },
    )
    assert answer.status_code == 302
    assert before.get(pk=world.owner.pk) == known


def test_a_key_is_made_for_an_own_contract_only(world: World) -> None:
    client = Client()
    sign_in_confirmed(client, world.owner)
    answer = client.post(
        f"/organisations/{world.organisation.pk}/keys/new/",
        {"name": "theirs", "scope": "ingest", "contract": world.stranger_contract.pk},
    )
    assert answer.status_code == 200
    assert "contract" in answer.context["form"].errors
    assert not AgentKey.objects.filter(name="theirs").exists()


def test_an_administrator_makes_nobody_owner(world: World) -> None:
    mine = Membership.objects.get(user=world.team_mate, revoked_at=None)
    Membership.objects.filter(pk=mine.pk).update(role=Role.ADMIN)
    client = Client()
    sign_in_confirmed(client, world.team_mate)
    path = f"/organisations/{world.organisation.pk}/members/{mine.pk}/"
    answer = client.post(path, {"role": "owner"}, follow=True)
    assert "Only an owner can make or remove an owner." in answer.content.decode()
    mine.refresh_from_db()
    assert mine.role == Role.ADMIN


def test_whoever_is_switched_off_is_out_at_once(world: World) -> None:
    client = signed_in(world.owner)
    assert client.get("/settings/").status_code == 200
    User.objects.filter(pk=world.owner.pk).update(is_active=False)
    assert client.get("/settings/").status_code == 302
    assert client.get("/api/v1/contracts").status_code == 401


# ── Questions that are not answerable

HOSTILE = [
    "",
    "\0",
    "%00",
    "-1",
    "9" * 400,
    "1e400",
    "NaN",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "٣",
    "x" * 6000,
    "' OR 1=1 --",
    "[]",
    "\ud7ff�",
    base64.b64encode(b"p=garbage").decode(),
    base64.b64encode(b"o=99999999999999999999&p=2026").decode(),
    base64.b64encode(b"r=1&p=%00").decode(),
    base64.b64encode(b"p=2026-11-02T00%3A00%3A00%2B99%3A99").decode(),
    "cD0=",
]
QUESTIONS = [
    "cursor", "page_size", "contract", "year", "state", "outcome", "kind", "run_id", "root_event", "signal", "xid",
    "node", "started_from", "started_before", "verdict", "number", "interval", "newer_than", "older_than",
    "spare_nodes", "write_seconds", "gpus", "price", "anchor", "rate", "failures", "next", "format", "lang", "page",
]  # fmt: skip


def test_no_question_ends_in_a_fault(scene: Scene) -> None:
    key, text = agent_key_create(organisation=scene.world.organisation, scope=Scope.READ, name="own", actor=None)
    desk, machine = Asker("desk", person=scene.world.account_manager), Asker("key", key=text, key_row=key)
    slow = (".pdf", ".parquet", "/schema")  # which read no question
    found = []
    for route in routes(scene):
        if route.path.endswith(slow) or route.name.startswith("account_"):
            continue
        for value in ("\0", "9" * 400, "x" * 6000):
            answer, _ = (machine if route.api else desk).ask("get", route.path, dict.fromkeys(QUESTIONS, value))
            if answer.status_code >= 500:
                found.append((route.name, value, answer.status_code))
    assert not found


@pytest.mark.parametrize("question", ["cursor", "started_from", "xid", "contract", "page_size", "node"])
def test_each_question_of_a_list_by_itself(scene: Scene, question: str) -> None:
    """One bad parameter among many hides the next."""
    client = signed_in(scene.world.owner)
    for path in ("incidents", "contracts", "contract-years", "statements", "credits"):
        for value in HOSTILE:
            answer = client.get(f"/api/v1/{path}", {question: value})
            assert answer.status_code in (200, 400, 404), (path, value)
            json.loads(answer.content)


def test_the_schema_is_written_once(db: None) -> None:
    """Anybody may ask for it, and writing it takes half a second."""
    client = Client()
    first = client.get("/api/v1/schema", {"version": "evil", "lang": "es"}).getvalue()
    assert b"evil" not in first
    began = time.perf_counter()
    again = [client.get("/api/v1/schema", {"n": str(number)}) for number in range(20)]
    assert time.perf_counter() - began < 2
    assert {answer.getvalue() for answer in again} == {first}
    assert client.get("/api/v1/schema", {"format": "json"}).json()["info"]["title"] == "YOCO API"


def test_one_person_cannot_keep_all_processors_busy_with_documents(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "statement_pdf", lambda context: b"%PDF-")  # only how often is asked here
    path = f"/contracts/{scene.contract.pk}/years/{scene.closed_year.pk}/statements/1.pdf"
    owner, viewer = signed_in(scene.world.owner), signed_in(scene.world.viewer)
    answers = [owner.get(path) for _ in range(14)]
    assert [answer.status_code for answer in answers] == [200] * 10 + [429] * 4
    assert int(answers[-1]["Retry-After"]) >= 1
    assert viewer.get(path).status_code == 200


# ── Bodies and files


@pytest.mark.parametrize("path", ["/accounts/login/", "/preferences/", "/api/v1/reports", "/api/v1/contracts"])
def test_a_body_that_no_page_takes_is_not_read(db: None, path: str) -> None:
    class Unread(io.BytesIO):
        def read(self, *args: Any) -> bytes:
            raise AssertionError("the body was read")

    for length in (str(13 * 1024 * 1024), "-1", "many"):
        answer = Client().post(
            path,
            **{"wsgi.input": Unread(), "CONTENT_LENGTH": length},
            content_type="multipart/form-data; boundary=b",
        )
        assert answer.status_code == 413
        assert b"12 MiB" in answer.content
        assert path.startswith("/api/") == (answer["Content-Type"] == "application/problem+json")


FILES = {
    "empty": b"",
    "binary": bytes(range(256)) * 400,
    "nulls": b"started_at,run_id,gpus\n\0\0,\0,\0\n",
    "one long line": b"started_at,run_id,gpus\n" + b"x" * 3_000_000,
    "one long header": b",".join(b"c%d" % n for n in range(200_000)),
    "open quote": b'started_at,run_id,gpus\n"' + b"a\n" * 200_000,
    "gzip": b"\x1f\x8b\x08\x00" + b"\0" * 1000,
    "zip": b"PK\x03\x04" + b"\0" * 1000,
    "utf-16": "started_at,run_id,gpus\n2027,x,8\n".encode("utf-16"),
    "absurd values": b"started_at,run_id,gpus\n9999-12-31T23:59:59-14:00,r,999999999999999999999999\n0001-01-01,r,-1\n",
    "absurd uptime": b"[99999999999999999999.000000] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, off the bus.\n",
    "markup": f"started_at,run_id,gpus\n{SCRIPT},{SCRIPT},8\n".encode(),
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("kind", ["csv", "sacct", "dmesg"])
def test_a_hostile_upload_is_answered(world: World, file: str, kind: str) -> None:
    client = signed_in(world.account_manager)
    upload = SimpleUploadedFile('../..\\evil"\r\n<b>.csv', FILES[file], content_type="application/x-evil")
    path = f"/desk/contracts/{world.contract.pk}/import/"
    constants = "run_id=r\ngpus=8\nnode=n" if kind == "dmesg" else ""
    said = {"format": kind, "time_zone": "UTC", "constants": constants, "boot_time": "2026-11-02T09:00:00Z"}
    answer = client.post(path, {"file": upload, **said})
    assert answer.status_code in (200, 302), answer.status_code
    if answer.status_code == 302:
        kept = ImportFile.objects.latest("uploaded_at")
        assert not set(kept.name) & set("/\\\r\n\0")
        shown = client.get(answer["Location"])
        assert shown.status_code in (200, 409)
        assert b"<script>alert" not in shown.content
        assert b"<b>" not in shown.content
        assert client.get(f"{answer['Location']}rejects.csv").status_code == 200


@pytest.mark.parametrize("time_format", ["%", "%Q" * 30, "%Y" * 29, "(" * 60, "%%%", "\\d+" * 20, "%c%C"])
def test_a_hostile_format_of_times_is_answered(world: World, time_format: str) -> None:
    client = signed_in(world.account_manager)
    upload = SimpleUploadedFile("a.csv", b"started_at,run_id,gpus\n2027-01-01,r,8\n")
    path = f"/desk/contracts/{world.contract.pk}/import/"
    answer = client.post(path, {"file": upload, "format": "csv", "time_zone": "UTC", "time_format": time_format})
    assert answer.status_code in (200, 302)
    if answer.status_code == 302:
        assert client.get(answer["Location"]).status_code in (200, 409)
