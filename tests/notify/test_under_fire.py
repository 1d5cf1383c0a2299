"""Real worker, beat, Redis and PostgreSQL, each killed in the middle of its work: in the end everything once.

Years close, credits are proposed, issued and approved, webhooks and e-mails go out. PDFs are not here: they are made
in the request that asks for one.
"""

import contextlib
import email
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from aiosmtpd.controller import Controller

from tests.notify.receiver import Receiver, receiving
from tests.services import ROOT, celery_beat, celery_worker, service_environment
from tools.services import Postgres, Redis, free_port

pytestmark = [pytest.mark.postgres, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

YEARS = 6

SET_UP = f"""
import datetime
from django.utils import timezone
from tests.people import build_world
from yoco.contracts.models import Contract, ContractYear, GuaranteeTerms
from yoco.core.clock import local_midnight
from yoco.demo.synthetic import synthetic_reports
from yoco.guarantee.services import reports_accept
from yoco.notify.endpoints import endpoint_create
from yoco.notify.models import MailPreference
world = build_world()
for number in range({YEARS}):
    first, last = datetime.date(2026, 8, 3), datetime.date(2026, 8, 23)
    contract = Contract.objects.create(
        organisation=world.organisation, number=f"PAST-{{number}}", name="Over", currency="EUR",
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
member = world.owner.memberships.get()
since = timezone.now() - datetime.timedelta(days=60)
MailPreference.objects.create(membership=member, digest="weekly", digest_since=since)
endpoint, secret = endpoint_create(
    organisation=world.organisation, name="Ledger", url="URL", kinds=[], actor=world.owner
)
print("SECRET", secret)
"""

# Two account managers settle every proposed credit; run again after a crash, it does what is left.
SETTLE = """
from yoco.accounts.models import User
from yoco.credits.models import Credit
from yoco.credits.services import credit_approve, credit_issue
amanda, boris = User.objects.filter(is_account_manager=True).order_by("email")
for credit in Credit.objects.order_by("pk"):
    key = f"{credit.pk}"
    credit_issue(credit_id=credit.pk, actor=amanda, reason="Checked.", key=f"issue {key}")
    credit_approve(credit_id=credit.pk, actor=boris, key=f"approve {key}")
"""


class Mailbox:
    """A mail server that keeps what it accepted."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.digests: set[str] = set()

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        message = email.message_from_bytes(envelope.content)
        self.ids.append(message["Message-ID"])
        if message["Subject"].startswith("The week of"):
            self.digests.add(message["Message-ID"])
        return "250 OK"


@contextlib.contextmanager
def mailbox() -> Iterator[tuple[Mailbox, int]]:
    box = Mailbox()
    controller = Controller(box, hostname="127.0.0.1", port=free_port())
    controller.start()
    try:
        yield box, controller.port
    finally:
        controller.stop()


def manage(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


def until(what: str, done: Any, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def counts(url: str) -> dict[str, int] | None:
    """What is still to do, and what was done; None while the database is away."""
    number = "(SELECT count(*) FROM {})".format
    queries = {
        "statements": number("guarantee_statement"),
        "approved": number("credits_credit WHERE state = 'approved'"),
        "waiting": number("core_outboxpending")
        + " + "
        + number("notify_webhookdelivery WHERE state = 'pending'")
        + " + "
        + number("notify_maildelivery WHERE state = 'pending'"),
        "digests": number("notify_maildelivery WHERE event_id IS NULL"),
    }
    try:
        with psycopg.connect(url, connect_timeout=3) as connection:
            row = connection.execute("SELECT " + ", ".join(queries.values())).fetchone()
    except psycopg.OperationalError:
        return None
    assert row is not None
    return dict(zip(queries, row, strict=True))


def test_whatever_is_killed_everything_happens_once(
    server_directory: Path, own_postgres: Postgres, own_redis: Redis
) -> None:
    with receiving() as receiver, mailbox() as (box, smtp_port):
        environment = service_environment(
            own_postgres.url,
            own_redis.url,
            TICK_SECONDS="1",
            WEBHOOK_TIMEOUT="1.5",
            WEBHOOK_ALLOW_HTTP="true",
            WEBHOOK_ALLOWED_NETWORKS="127.0.0.0/8",
            EMAIL_URL=f"smtp://127.0.0.1:{smtp_port}",
            EMAIL_TIMEOUT="1",
        )
        assert manage(environment, "migrate", "--verbosity=0").returncode == 0
        made = manage(environment, "shell", "--verbosity=0", "--command", SET_UP.replace("URL", receiver.url))
        assert made.returncode == 0, made.stderr
        secret = made.stdout.split()[-1]

        # Slow enough to be killed in the middle of a request. One failure alone: a second would wait for minutes.
        receiver.before_answer = lambda: time.sleep(0.15)
        receiver.answer = lambda number: 500 if number == 1 else 204
        worker, beat = celery_worker(server_directory, environment), celery_beat(server_directory, environment)
        try:
            worker.start()
            beat.start()
            until("no webhook arrives", lambda: len(receiver.requests) >= 2)
            worker.kill()
            settle = threading.Thread(target=settle_all, args=(environment, own_postgres.url))
            settle.start()
            worker.start()
            beat.kill()
            beat.start()
            beaten(receiver, own_redis.kill)
            own_redis.start()
            beaten(receiver, own_postgres.kill)
            own_postgres.start()
            beaten(receiver, worker.kill)
            worker.start()
            settle.join(90)
            until("not all is done", lambda: all_done(own_postgres.url))
        finally:
            beat.stop(5)
            worker.stop(5)
        once(own_postgres.url, receiver, box, secret)


def beaten(receiver: Receiver, kill: Any) -> None:
    """Kills while the next request is under way, or after two seconds of rest."""
    seen, deadline = len(receiver.requests), time.monotonic() + 2
    while len(receiver.requests) == seen and time.monotonic() < deadline:
        time.sleep(0.01)
    kill()


def settle_all(environment: dict[str, str], url: str) -> None:
    deadline = time.monotonic() + 80
    while time.monotonic() < deadline:
        ended = manage(environment, "shell", "--verbosity=0", "--command", SETTLE).returncode == 0
        now = counts(url)
        if ended and now is not None and now["approved"] == YEARS:
            return


def all_done(url: str) -> bool:
    return counts(url) == {"statements": YEARS, "approved": YEARS, "waiting": 0, "digests": 1}


def once(url: str, receiver: Receiver, box: Mailbox, secret: str) -> None:
    with psycopg.connect(url) as connection:
        events = connection.execute("SELECT id::text, kind FROM core_outboxevent").fetchall()
        deliveries = connection.execute("SELECT event_id::text, state FROM notify_webhookdelivery").fetchall()
        mails = connection.execute("SELECT id::text, state FROM notify_maildelivery").fetchall()
        audited = connection.execute("SELECT action, subject_id FROM core_auditentry").fetchall()
    kinds = Counter(kind for _, kind in events)
    assert kinds == dict.fromkeys(["statement.created", "credit.proposed", "credit.issued", "credit.approved"], YEARS)
    assert set(Counter(row for row in audited if row[0].startswith(("credit.", "year."))).values()) == {1}
    # Webhooks: one delivery for each event, accepted; whatever was sent twice had the same id and the same bytes.
    assert sorted(deliveries) == sorted((name, "delivered") for name, _ in events)
    assert set(receiver.ids()) == {name for name, _ in events}
    assert len(set(receiver.got)) == len(events)
    assert len(receiver.verified(secret)) == len(receiver.requests)
    # E-mails: three kinds of notices to three members, and one digest; a repetition would bear the same Message-ID.
    assert len(mails) == 3 * 3 * YEARS + 1
    assert {state for _, state in mails} == {"delivered"}
    assert {name.strip("<>").partition("@")[0] for name in box.ids} == {name for name, _ in mails}
    assert len(box.digests) == 1
    twice = len(receiver.got) - len(events), len(box.ids) - len(mails)
    print(f"accepted twice because of a kill: {twice[0]} webhooks of {len(events)}, {twice[1]} e-mails of {len(mails)}")
