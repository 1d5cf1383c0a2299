"""The service as docker-compose.yml starts it: two database roles, HTTPS behind one proxy; real answers."""

import http.cookies
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Debugging
from django.core.management import CommandError, call_command

from tests.ingest.reports import report
from tests.people import PASSWORD
from tests.services import ROOT, web_server
from tools.compose import compose_environment, make_roles
from tools.services import Postgres, free_port, scratch_directory

pytestmark = [pytest.mark.postgres, pytest.mark.xdist_group("production")]
HOST_NAME = "yoco.example"
BEHIND_A_PROXY = {
    "HTTPS": "true",
    "TRUST_FORWARDED_PROTO": "true",
    "TRUSTED_PROXIES": "1",
    "ALLOWED_HOSTS": HOST_NAME,
    "CSRF_TRUSTED_ORIGINS": f"https://{HOST_NAME}",
    "SITE_URL": f"https://{HOST_NAME}",
}


@dataclass
class Production:
    """A migrated database with its two roles, and the environment of the processes that serve."""

    directory: Path
    owner: str
    app: str
    environment: dict[str, str]
    owner_email: str = ""
    key: str = ""
    year: str = ""

    def command(self, *arguments: str, url: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        environment = self.environment | {"DATABASE_URL": url or self.app} | more
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=100)


@pytest.fixture(scope="module")
def production() -> Iterator[Production]:
    with scratch_directory() as directory, Postgres(directory) as server:
        owner, app = make_roles(server)
        environment = compose_environment("web", **BEHIND_A_PROXY)
        environment |= {"REDIS_URL": "", "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "DATABASE_URL": app}
        environment["DJANGO_SETTINGS_MODULE"] = "yoco.settings"
        place = Production(directory, owner, app, environment)
        for command in (["migrate", "--no-input"], ["database_roles", "--apply"]):
            done = place.command("manage.py", *command, url=owner)
            assert done.returncode == 0, done.stderr
        year = place.command("-m", "tests.security.year_as_app")
        assert year.returncode == 0, year.stderr[-3000:]
        place.owner_email, place.key, place.year = year.stdout.split()[-3:]
        yield place


@pytest.fixture(scope="module")
def web(production: Production) -> Iterator[httpx.Client]:
    """A browser's side of the proxy: what it forwards."""
    with web_server(production.directory, production.environment) as server:
        headers = {"Host": HOST_NAME, "X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.7"}
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", headers=headers) as client:
            yield client


def cookies_of(answer: httpx.Response) -> dict[str, http.cookies.Morsel[str]]:
    jar: http.cookies.SimpleCookie = http.cookies.SimpleCookie()
    for line in answer.headers.get_list("set-cookie"):
        jar.load(line)
    return dict(jar)


def signed_in(web: httpx.Client, production: Production) -> tuple[dict[str, str], dict[str, http.cookies.Morsel[str]]]:
    """The Cookie header of the owner after signing in, and every cookie that was set on the way."""
    page = web.get("/accounts/login/")
    seen = cookies_of(page)
    token = page.text.partition('name="csrfmiddlewaretoken" value="')[2].partition('"')[0]
    answer = web.post(
        "/accounts/login/",
        data={"login": production.owner_email, "password": PASSWORD, "csrfmiddlewaretoken": token},
        headers={"Cookie": header(seen), "Origin": f"https://{HOST_NAME}"},
    )
    assert answer.status_code == 302, answer.text[:500]
    seen |= cookies_of(answer)
    return {"Cookie": header(seen)}, seen


def header(cookies: dict[str, http.cookies.Morsel[str]]) -> str:
    return "; ".join(f"{name}={morsel.value}" for name, morsel in cookies.items())


def test_the_deployment_check_has_nothing_to_say(production: Production) -> None:
    arguments = ["manage.py", "check", "--deploy", "--database", "default", "--fail-level", "INFO"]
    done = production.command(*arguments)
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout
    wrong = production.command(
        *arguments, url=production.owner, KEY_PEPPERS="1=" + production.environment["SECRET_KEY"]
    )
    assert wrong.returncode == 1
    assert {"yoco.E002", "yoco.W001"} <= set(wrong.stderr.replace(")", "(").split("("))
    assert "switch their triggers off" in wrong.stderr


@pytest.mark.django_db
def test_the_grants_can_be_read_before_they_run(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("database_roles", "--print")
    printed = capsys.readouterr().out
    assert 'GRANT SELECT, INSERT ON "credits_posting" TO "yoco_app"' in printed
    assert 'GRANT SELECT ON "django_migrations" TO "yoco_app"' in printed
    assert 'GRANT SELECT, INSERT, UPDATE ON "credits_credit" TO "yoco_app"' in printed
    with pytest.raises(CommandError, match=r"roles\.sql"):
        call_command("database_roles", "--apply", "--role", "nobody_here")


def append_only(connection: psycopg.Connection[Any]) -> list[str]:
    rows = connection.execute(
        "SELECT DISTINCT t.tgrelid::regclass::text FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid "
        "WHERE p.proname = 'yoco_refuse_change'"
    )
    return sorted(name for (name,) in rows)


def test_the_serving_role_changes_no_append_only_table(production: Production) -> None:
    with psycopg.connect(production.app, autocommit=True) as connection:
        tables = append_only(connection)
        assert {"credits_posting", "credits_ledgertransaction", "guarantee_statement", "incidents_rawreport"} <= set(
            tables
        )
        attempts = [
            attempt
            for table in tables
            for attempt in (
                f"ALTER TABLE {table} DISABLE TRIGGER ALL",
                f"ALTER TABLE {table} DISABLE TRIGGER USER",
                f"DROP TRIGGER {table}_no_change ON {table}",
                f"TRUNCATE {table}",
                f"DELETE FROM {table}",
                f"UPDATE {table} SET {first_column(connection, table)} = NULL",
                f"ALTER TABLE {table} OWNER TO yoco_app",
                f"DROP TABLE {table}",
            )
        ]
        attempts += [
            "SET session_replication_role = replica",
            "SET ROLE yoco_owner",
            "SET SESSION AUTHORIZATION yoco_owner",
            "CREATE OR REPLACE FUNCTION yoco_refuse_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'",
            "ALTER FUNCTION yoco_refuse_change() RENAME TO gone",
            "CREATE TABLE mine (id int)",
            "CREATE TEMP TABLE mine (id int)",
            "DELETE FROM contracts_contract",
            "DELETE FROM credits_credit",
            "UPDATE django_migrations SET name = ''",
            "COPY credits_posting TO PROGRAM 'true'",
            "ALTER ROLE yoco_app SUPERUSER",
            "CREATE DATABASE other",
        ]
        for attempt in attempts:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                refused(connection, attempt)


def refused(connection: psycopg.Connection[Any], statement: str) -> None:
    connection.execute(statement)
    pytest.fail(f"{statement} was let through")


def first_column(connection: psycopg.Connection[Any], table: str) -> str:
    row = connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum LIMIT 1", [table]
    ).fetchone()
    assert row
    return str(row[0])


def test_a_table_made_later_is_closed_until_the_grants_run_again(production: Production) -> None:
    with psycopg.connect(production.owner, autocommit=True) as owner:
        owner.execute("CREATE TABLE later (id int)")
        with psycopg.connect(production.app, autocommit=True) as app:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                app.execute("SELECT * FROM later")
            assert production.command("manage.py", "database_roles", "--apply", url=production.owner).returncode == 0
            assert app.execute("SELECT * FROM later").fetchall() == []
        owner.execute("DROP TABLE later")


def test_cookies_belong_to_this_host_over_https_only(web: httpx.Client, production: Production) -> None:
    signed, cookies = signed_in(web, production)
    assert {"__Host-sessionid", "__Host-csrftoken"} <= set(cookies)
    page = web.get("/settings/", headers=signed)
    assert page.status_code == 200
    token = page.text.partition('name="csrfmiddlewaretoken" value="')[2].partition('"')[0]
    chosen = web.post(
        "/preferences/",
        data={"language": "es", "theme": "dark", "csrfmiddlewaretoken": token},
        headers=signed | {"Origin": f"https://{HOST_NAME}"},
    )
    cookies |= cookies_of(chosen)
    assert {"__Host-language", "__Host-theme"} <= set(cookies)
    for name, morsel in cookies.items():
        assert name.startswith("__Host-"), name
        assert morsel["secure"], name
        assert morsel["httponly"], name
        assert morsel["samesite"] in ("Lax", "Strict"), name
        assert morsel["path"] == "/", name
        assert not morsel["domain"], name


EVERYWHERE = {
    "strict-transport-security": "max-age=31536000; includeSubDomains; preload",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def test_every_kind_of_answer_says_what_a_browser_may_do(web: httpx.Client, production: Production) -> None:
    signed, _ = signed_in(web, production)
    answers = {
        "page": web.get(production.year, headers=signed),
        "download": web.get(f"{production.year}export.json", headers=signed),
        "redirect": web.get(production.year),
        "missing": web.get("/nowhere", headers=signed),
        "api": web.get("/api/v1/contracts", headers=signed),
        "refused": web.get("/api/v1/contracts"),
        "sign-in": web.get("/accounts/login/"),
        "documentation": web.get("/api/v1/docs"),
        "static": web.get("/static/css/base.css"),
    }
    assert {name: answer.status_code for name, answer in answers.items()} == {
        name: {"redirect": 302, "missing": 404, "refused": 401}.get(name, 200) for name in answers
    }
    for name, answer in answers.items():
        assert EVERYWHERE.items() <= dict(answer.headers).items(), name
        assert "camera=()" in answer.headers["permissions-policy"], name
        assert "server" not in answer.headers or "/" not in answer.headers["server"], name
        if name == "static":
            continue
        assert "no-store" in answer.headers["cache-control"], name
        policy = answer.headers["content-security-policy"]
        for directive in ("default-src 'self'", "object-src 'none'", "base-uri 'none'", "frame-ancestors 'none'"):
            assert directive in policy, name
        assert "upgrade-insecure-requests" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-frame-options"] == "DENY", name


def test_http_is_sent_to_https_and_a_foreign_host_is_refused(web: httpx.Client) -> None:
    plain = web.get("/settings/", headers={"X-Forwarded-Proto": "http"})
    assert (plain.status_code, plain.headers["location"]) == (301, f"https://{HOST_NAME}/settings/")
    machine = web.get("/api/v1/contracts", headers={"X-Forwarded-Proto": "http"})
    assert (machine.status_code, machine.json()["type"]) == (403, "urn:yoco:problem:https_required")
    assert machine.headers["content-type"] == "application/problem+json"
    for headers in ({"Host": "evil.example"}, {"Host": f"{HOST_NAME}@evil.example"}, {"Host": f"evil.{HOST_NAME}"}):
        assert web.get("/accounts/login/", headers=headers).status_code == 400
    forwarded = web.get("/accounts/login/", headers={"X-Forwarded-Host": "evil.example"})
    assert forwarded.status_code == 200
    assert "evil.example" not in forwarded.text


def test_reports_arrive_as_the_serving_role(web: httpx.Client, production: Production) -> None:
    answer = web.post("/api/v1/reports", json=[report()], headers={"Authorization": f"Bearer {production.key}"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["results"][0]["status"] == "created"


def test_secrets_may_come_from_files(production: Production, tmp_path: Path) -> None:
    files = {}
    for name in ("SECRET_KEY", "DATABASE_URL", "KEY_PEPPERS"):
        file = tmp_path / name.lower()
        file.write_text(production.environment[name] + "\n")
        files[f"{name}_FILE"] = str(file)
    script = (
        "from yoco import settings as s; "
        "print(s.SECRET_KEY, s.KEY_PEPPERS[1], s.DATABASES['default']['USER'], s.DATABASES['default']['NAME'])"
    )
    kept = {name: value for name, value in production.environment.items() if f"{name}_FILE" not in files}
    done = subprocess.run([sys.executable, "-c", script], env=kept | files, cwd=ROOT, capture_output=True, text=True)
    pepper = production.environment["KEY_PEPPERS"].removeprefix("1=")
    assert done.stdout.split() == [production.environment["SECRET_KEY"], pepper, "yoco_app", "yoco"], done.stderr


MAILED = {"DEFAULT_FROM_EMAIL": "YOCO <yoco@yoco.example>"}


def doctor(production: Production, *arguments: str, **more: str) -> tuple[int, list[dict[str, str]], str]:
    """Exit status, what was found, and the last word."""
    done = production.command("manage.py", "doctor", "--format=json", *arguments, **more)
    return done.returncode, json.loads(done.stdout), done.stderr.strip().splitlines()[-1] if done.stderr else ""


def test_the_doctor_finds_nothing_wrong_here_and_names_what_is_broken_on_purpose(production: Production) -> None:
    assert production.command("manage.py", "tick").returncode == 0
    mail = Controller(Debugging(io.StringIO()), hostname="127.0.0.1", port=free_port())
    mail.start()
    try:
        well = MAILED | {"EMAIL_URL": f"smtp://127.0.0.1:{mail.port}"}
        status, found, last = doctor(production, "--language=en", **well)
        assert (status, [one for one in found if one["state"] == "fault"]) == (0, []), last
        parts = {one["part"] for one in found if one["state"] == "ok"}
        assert {"database", "database role", "migrations", "triggers", "due work", "e-mail", "settings"} <= parts
    finally:
        mail.stop()

    breaks = [
        "ALTER TABLE credits_posting DISABLE TRIGGER credits_posting_no_change",
        "DROP TRIGGER guarantee_statement_no_truncate ON guarantee_statement",
        "UPDATE django_migrations SET name = 'x' || name WHERE app = 'notify' AND name LIKE '0002%'",
        "UPDATE core_jobrun SET ended_at = ended_at - interval '1 hour' WHERE name = 'tick'",
        "GRANT DELETE ON credits_posting TO yoco_app",
    ]
    mends = [
        "ALTER TABLE credits_posting ENABLE TRIGGER credits_posting_no_change",
        "CREATE TRIGGER guarantee_statement_no_truncate BEFORE TRUNCATE ON guarantee_statement "
        "FOR EACH STATEMENT EXECUTE FUNCTION yoco_refuse_change()",
        "UPDATE django_migrations SET name = substr(name, 2) WHERE app = 'notify' AND name LIKE 'x0002%'",
        "REVOKE DELETE ON credits_posting FROM yoco_app",
    ]
    with psycopg.connect(production.owner, autocommit=True) as owner:
        try:
            for statement in breaks:
                owner.execute(statement)
            wrong = MAILED | {"EMAIL_URL": "smtp://127.0.0.1:9", "SECRET_KEY": "short", "SITE_URL": "http://localhost"}
            status, found, last = doctor(production, "--language=es", **wrong)
        finally:
            for statement in mends:
                owner.execute(statement)
    assert status == 1
    faults = [one for one in found if one["state"] == "fault"]
    assert all(one["mend"] for one in faults)
    told = " ".join(one["said"] for one in faults)
    for sign in (
        "credits_posting_no_change",
        "guarantee_statement_no_truncate",
        "notify.0002_dead_letters",
        "DELETE credits_posting",
        "security.W009",
        "http://localhost",
    ):
        assert sign in told, told
    assert {"correo electrónico", "trabajo pendiente"} <= {one["part"] for one in faults}
    assert last == f"CommandError: {len(faults)} fallos que corregir."


def test_the_doctor_says_so_when_the_database_is_gone(production: Production) -> None:
    url = production.app.replace("/yoco", "/nowhere")
    done = production.command("manage.py", "doctor", "--language=en", url=url, EMAIL_URL="dummymail://")
    assert done.returncode == 1
    assert "FAULT  database: It does not answer" in done.stdout
    assert "→ Start it, or set DATABASE_URL" in done.stdout
    assert "triggers" not in done.stdout
    assert "Traceback" not in done.stderr
