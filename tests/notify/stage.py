"""The whole service as in production, with customers, a receiver and a mailbox around it, to kill its parts."""

import asyncio
import contextlib
import email
import io
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from aiosmtpd.controller import Controller
from pypdf import PdfReader

from tests.notify.receiver import Receiver, receiving
from tests.people import PASSWORD
from tests.services import ROOT, service_environment
from tools.load.measuring import Log
from tools.load.people import Failed, Forms, Person
from tools.load.stack import Stack, databases_ready, kill_and_start, serving
from tools.services import HOST, free_port, scratch_directory

MEMBERS = 4
SLOW_S = 0.6  # what is killed in the middle takes at least so long

# One contract and one member for each server that is killed. The years are over; they are held back for their turn.
SET_UP = """
import datetime
from django.db.models import F
from tests.people import build_world, user
from yoco.accounts.models import Role
from yoco.accounts.services import member_add
from yoco.contracts.models import Contract, ContractYear, GuaranteeTerms
from yoco.core.clock import local_midnight
from yoco.demo.synthetic import synthetic_reports
from yoco.guarantee.services import reports_accept
from yoco.notify.endpoints import endpoint_create
from yoco.notify.models import MailPreference
world = build_world()
member_add(organisation=world.organisation, user=user("nora@example.com"), role=Role.MEMBER, actor=None)
never = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
for number, member in enumerate(world.organisation.memberships.order_by("pk")):
    first, last = datetime.date(2026, 8, 3), datetime.date(2026, 8, 23)
    contract = Contract.objects.create(
        organisation=world.organisation, number=f"PAST-{number}", name="Over", currency="EUR",
        time_zone="UTC", starts_on=first, ends_on=last, guarantee_from=first, price_per_gpu_hour="2.50",
    )
    GuaranteeTerms.objects.create(contract=contract, version=1, effective_on=first)
    start, end = (local_midnight(day, "UTC") for day in (first, last))
    year = ContractYear.objects.create(
        contract=contract, number=1, starts_on=first, ends_on=last, starts_at=start, ends_at=end,
        guaranteed_from=start, guaranteed_until=end,
    )
    reports = list(synthetic_reports(start=year.starts_at, end=year.ends_at))
    reports_accept(contract=contract, key=None, reports=reports, received_at=year.ends_at, source="synthetic")
    MailPreference.objects.create(membership=member, digest="weekly", digest_since=never)
ContractYear.objects.filter(contract__number__startswith="PAST-").update(ends_at=never)
endpoint, secret = endpoint_create(
    organisation=world.organisation, name="Ledger", url="URL", kinds=[], actor=world.owner
)
print("SECRET", secret)
"""

# As the superuser, so that the service runs the code that it always runs, only slower.
SLOW = f"""
CREATE FUNCTION rest() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep({SLOW_S}); RETURN NULL; END';
CREATE TRIGGER rest AFTER INSERT ON guarantee_statement FOR EACH ROW EXECUTE FUNCTION rest();
CREATE TRIGGER rest AFTER UPDATE ON credits_credit FOR EACH ROW WHEN (NEW.state = 'issued') EXECUTE FUNCTION rest();
"""


class Mailbox:
    """A mail server that takes its time and keeps what it accepted."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.digests: set[str] = set()
        self.digest_under_way = False

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        message = email.message_from_bytes(envelope.content)
        if message["Subject"].startswith("The week of"):
            self.digests.add(message["Message-ID"])
            self.digest_under_way = True
            await asyncio.sleep(SLOW_S)
            self.digest_under_way = False
        self.ids.append(message["Message-ID"])
        return "250 OK"


@contextlib.contextmanager
def mailbox() -> Iterator[tuple[Mailbox, int]]:
    box = Mailbox()
    controller = Controller(box, hostname=HOST, port=free_port())
    controller.start()
    try:
        yield box, controller.port
    finally:
        controller.stop()


def until(what: str, done: Callable[[], Any], seconds: float = 60, step: float = 0.1) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(step)


@dataclass
class Stage:
    """What runs, and what one does to it."""

    stack: Stack
    receiver: Receiver
    box: Mailbox
    secret: str

    def sql(self, query: str, *values: Any) -> list[Any]:
        """As the superuser, past the service. Nothing while PostgreSQL is away."""
        postgres = self.stack.postgres
        url = f"postgresql://postgres:{postgres.password}@{HOST}:{postgres.port}/yoco"
        try:
            with psycopg.connect(url, connect_timeout=3) as connection:
                cursor = connection.execute(query, values or None)
                return cursor.fetchall() if cursor.description else []
        except psycopg.OperationalError:
            return []

    def person(self, address: str) -> Person:
        return Person(self.stack.url, address, PASSWORD, Log())

    def sleeping(self) -> bool:
        """Whether a transaction of the service is in one of the slow places."""
        return bool(self.sql("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"))

    def killed(self, victim: str, busy: Callable[[], Any], what: str) -> None:
        """Kills in the middle of the work, and starts again."""
        until(f"{what} never begins", busy, step=0.02)
        kill_and_start(self.stack, getattr(self.stack, victim), 0.2)


@contextlib.contextmanager
def staged() -> Iterator[Stage]:
    with receiving() as receiver, mailbox() as (box, smtp_port), scratch_directory() as directory:
        dot_env = {
            "TICK_SECONDS": "1",
            "WEBHOOK_TIMEOUT": "1.5",
            "WEBHOOK_ALLOW_HTTP": "true",
            "WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8",
            "EMAIL_URL": f"smtp://{HOST}:{smtp_port}",
            "EMAIL_TIMEOUT": "1",
        }
        with databases_ready(directory, **dot_env) as stack:
            environment = service_environment("") | stack.environment
            script = SET_UP.replace("URL", receiver.url)
            command = [sys.executable, "manage.py", "shell", "--verbosity=0", "--command", script]
            made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
            assert made.returncode == 0, made.stderr
            stage = Stage(stack, receiver, box, made.stdout.split()[-1])
            stage.sql(SLOW)
            receiver.before_answer = lambda: time.sleep(SLOW_S)
            with serving(stack):
                yield stage


@contextlib.contextmanager
def meanwhile(job: Callable[[], Any]) -> Iterator[threading.Thread]:
    """Runs `job` beside the block; what it raises is raised at the end."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            job()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(60)
    assert not failed, failed


# ── What is under way when a server is killed. Each takes the stage, the victim and the number of its contract.


def year_close(stage: Stage, victim: str, number: int) -> None:
    year = "contract_id = (SELECT id FROM contracts_contract WHERE number = %s)"
    stage.sql(f"UPDATE contracts_contractyear SET ends_at = guaranteed_until WHERE {year}", f"PAST-{number}")
    stage.killed(victim, stage.sleeping, "the closing of a year")
    until("the year is not closed", lambda: credit_path(stage, number))


def credit_path(stage: Stage, number: int) -> str:
    rows = stage.sql(
        "SELECT k.id FROM credits_credit k JOIN contracts_contractyear y ON y.id = k.year_id "
        "JOIN contracts_contract c ON c.id = y.contract_id WHERE c.number = %s",
        f"PAST-{number}",
    )
    return f"/desk/credits/{rows[0][0]}/" if rows else ""


def confirming(person: Person, path: str) -> Callable[[], None]:
    """Opens a step of a credit; returns what presses its button."""
    form = Forms(person.open("step", path)).with_field("key")
    return lambda: person.send("step", path, form, reason="Checked.", decision="confirm")


def credit_issue(stage: Stage, victim: str, number: int) -> None:
    press = confirming(stage.person("amanda@yoco.example"), credit_path(stage, number) + "issue/")
    with meanwhile(press):
        stage.killed(victim, stage.sleeping, "the issue of a credit")


def webhooks(stage: Stage, victim: str, number: int) -> None:
    press = confirming(stage.person("boris@yoco.example"), credit_path(stage, number) + "approve/")
    seen = len(stage.receiver.requests)
    with meanwhile(press):
        stage.killed(victim, lambda: len(stage.receiver.requests) > seen and stage.receiver.busy, "a webhook")


def digest(stage: Stage, victim: str, number: int) -> None:
    stage.sql(
        "UPDATE notify_mailpreference SET digest_since = now() - interval '60 days' WHERE membership_id = "
        "(SELECT membership_id FROM notify_mailpreference ORDER BY membership_id LIMIT 1 OFFSET %s)",
        number,
    )
    stage.killed(victim, lambda: stage.box.digest_under_way, "the sending of a digest")


def pdf(stage: Stage, victim: str, number: int) -> None:
    """A document is made in the request: whatever dies, the same document comes at the latest at the next try."""
    ((contract, year, sha256),) = stage.sql(
        "SELECT c.id, y.id, s.sha256 FROM guarantee_statement s JOIN contracts_contractyear y ON y.id = s.year_id "
        "JOIN contracts_contract c ON c.id = y.contract_id WHERE c.number = %s",
        f"PAST-{number}",
    )
    olivia, path = stage.person("olivia@example.com"), f"/contracts/{contract}/years/{year}/statements/1.pdf"
    olivia.open("sign in", "/")
    got: list[bytes] = []

    def fetch() -> None:
        while not got:
            with contextlib.suppress(Failed):
                got.append(olivia.fetch("PDF", path))

    with meanwhile(fetch) as fetching:
        time.sleep(0.2)
        stage.killed(victim, fetching.is_alive, "the making of a document")
    text = "".join(page.extract_text() for page in PdfReader(io.BytesIO(got[0])).pages)
    assert sha256 in re.sub(r"\s", "", text)


ACTIVITIES = (year_close, credit_issue, webhooks, pdf, digest)


def waiting(stage: Stage) -> Any:
    """How much is on its way; None while nobody can tell."""
    rows = stage.sql(
        "SELECT (SELECT count(*) FROM core_outboxpending) + "
        "(SELECT count(*) FROM notify_webhookdelivery WHERE state = 'pending') + "
        "(SELECT count(*) FROM notify_maildelivery WHERE state = 'pending')"
    )
    return rows[0][0] if rows else None


def once(stage: Stage, turns: int) -> None:
    """Everything of so many turns happened once."""
    events = stage.sql("SELECT id::text, kind FROM core_outboxevent")
    deliveries = stage.sql("SELECT event_id::text, state FROM notify_webhookdelivery")
    mails = stage.sql("SELECT id::text, state, event_id FROM notify_maildelivery")
    audited = stage.sql("SELECT action, subject_id FROM core_auditentry")
    kinds = Counter(kind for _, kind in events)
    assert kinds == dict.fromkeys(["statement.created", "credit.proposed", "credit.issued", "credit.approved"], turns)
    assert set(Counter(row for row in audited if row[0].startswith(("credit.", "year."))).values()) == {1}
    # Webhooks: one delivery for each event, accepted; whatever was sent twice had the same id and the same bytes.
    receiver = stage.receiver
    assert sorted(deliveries) == sorted((name, "delivered") for name, _ in events)
    assert set(receiver.ids()) == {name for name, _ in events}
    assert len(set(receiver.got)) == len(events)
    assert len(receiver.verified(stage.secret)) == len(receiver.requests)
    # E-mails: three kinds of notices to every member and a digest a turn; a repetition bears the same Message-ID.
    assert Counter(event is None for _, _, event in mails) == {False: 3 * MEMBERS * turns, True: turns}
    assert {state for _, state, _ in mails} == {"delivered"}
    assert {name.strip("<>").partition("@")[0] for name in stage.box.ids} == {name for name, _, _ in mails}
    assert len(stage.box.digests) == turns
