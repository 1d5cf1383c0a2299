"""What `manage.py doctor` looks at, one part after another. Each check reads, and says for each fault what to mend."""

import shutil
import tempfile
import time
import zoneinfo
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import httpx
import redis
from celery import current_app
from django.conf import settings
from django.core import checks
from django.core.mail import get_connection
from django.db import Error, connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone
from django.utils.translation import gettext as _
from kombu.exceptions import OperationalError as BrokerGone

from yoco.contracts.models import Contract
from yoco.core.counters import broker
from yoco.core.database_roles import excess
from yoco.core.jobs import LEDGER_VERIFY, TICK
from yoco.core.models import JobRun
from yoco.core.triggers import triggers_missing

OLDEST_POSTGRESQL = 15
CLOCK_MAY_DIFFER_S = 5.0
DISK_NEEDED = 1024**3
SECONDS_FOR_WORKERS = 3.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one part, and for a fault what to do about it. A note is no fault, but good to know."""

    part: str
    state: Literal["ok", "note", "fault"]
    said: str
    mend: str = ""


def database() -> Iterator[Finding]:
    part = _("database")
    try:
        connection.ensure_connection()
    except Error as error:
        said = _("It does not answer: %s") % str(error).partition("\n")[0]
        yield Finding(part, "fault", said, _("Start it, or set DATABASE_URL to where it listens (docs/settings.md)."))
        return
    if connection.vendor != "postgresql":
        said = _("SQLite, the embedded default: one machine, one writer at a time.")
        yield Finding(part, "note", said, _("For customers set DATABASE_URL to PostgreSQL %d.") % OLDEST_POSTGRESQL)
        return
    version = connection.pg_version // 10_000  # type: ignore[attr-defined]
    if version < OLDEST_POSTGRESQL:
        said = _("PostgreSQL %d is too old.") % version
        yield Finding(part, "fault", said, _("Upgrade it to %d or newer.") % OLDEST_POSTGRESQL)
    else:
        yield Finding(part, "ok", _("PostgreSQL %d answers.") % version)


def role() -> Iterator[Finding]:
    if connection.vendor != "postgresql":
        return
    part = _("database role")
    faults = excess(connection)
    for fault in faults:
        said = _("The role of DATABASE_URL %s.") % fault
        mend = _(
            "Serve as yoco_app and migrate as yoco_owner (deploy/postgres/roles.sql), then run "
            "`manage.py database_roles --apply` as the owner."
        )
        yield Finding(part, "fault", said, mend)
    if not faults:
        yield Finding(part, "ok", _("It owns nothing and changes no append-only table."))


def migrations() -> Iterator[Finding]:
    part = _("migrations")
    executor = MigrationExecutor(connection)
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if missing:
        said = _("%(number)d are not applied, the first is %(name)s.") % {
            "number": len(missing),
            "name": missing[0][0],
        }
        yield Finding(part, "fault", said, _("Run `manage.py migrate` as the owner of the tables."))
    else:
        yield Finding(part, "ok", _("All are applied."))


def triggers() -> Iterator[Finding]:
    part = _("triggers")
    missing = triggers_missing(connection)
    for name in missing:
        mend = _(
            "Find out who removed it and prove the books (`manage.py ledger_verify`). Restore it from the migration "
            "that made it, or the whole database from a backup."
        )
        yield Finding(part, "fault", _("%s is missing or switched off.") % name, mend)
    if not missing:
        yield Finding(part, "ok", _("Those that keep the ledger and append-only tables are all in place."))


def time_zones() -> Iterator[Finding]:
    part = _("time zones")
    known = zoneinfo.available_timezones()
    unknown = sorted(set(Contract.objects.values_list("time_zone", flat=True).distinct()) - known)
    for name in unknown:
        said = _("A contract's time zone %s is not known here.") % name
        yield Finding(part, "fault", said, _("Update the time zone data: `pip install --upgrade tzdata`."))
    if not unknown:
        yield Finding(part, "ok", _("%d are known, those of all contracts among them.") % len(known))


def due_work() -> Iterator[Finding]:
    part = _("due work")
    last = {run.name: run for run in JobRun.objects.exclude(ended_at=None)}
    tick, proof = last.get(TICK), last.get(LEDGER_VERIFY)
    start = _("Run one `celery beat` and a worker, or `manage.py tick` every minute by cron.")
    if tick is None or tick.ended_at is None:
        yield Finding(part, "fault", _("Nothing due was ever done here."), start)
    elif (age := (timezone.now() - tick.ended_at).total_seconds()) > 3 * settings.TICK_SECONDS + 60:
        yield Finding(part, "fault", _("What is due was last done %d minutes ago.") % (age // 60), start)
    elif not tick.ok:
        said = _("The last tick failed: %s.") % tick.detail
        yield Finding(part, "fault", said, _("Its trace is in the worker's log; `manage.py tick` does it again."))
    else:
        yield Finding(part, "ok", _("It was done %d seconds ago.") % age)
    if proof is not None and not proof.ok:
        said = _("The last proof of the ledger found: %s") % proof.detail.partition("\n")[0]
        yield Finding(part, "fault", said, _("Issue nothing. `manage.py ledger_verify` names the first broken row."))


def redis_server() -> Iterator[Finding]:
    part = "Redis"
    if not settings.REDIS_URL:
        said = _("None: tasks run in the process that asks, and each process has limits of its own.")
        yield Finding(part, "note", said, _("For customers set REDIS_URL and run a worker and one beat."))
        return
    try:
        answered = broker(settings.REDIS_URL).info("server")
    except redis.RedisError as error:
        said = _("It does not answer (%s).") % type(error).__name__
        yield Finding(part, "fault", said, _("Start it, or set REDIS_URL to where it listens, with its password."))
        return
    yield Finding(part, "ok", _("Version %s answers.") % answered["redis_version"])
    part = _("workers")
    try:
        workers = current_app.control.ping(timeout=SECONDS_FOR_WORKERS)
    except (BrokerGone, OSError):
        workers = []
    if workers:
        yield Finding(part, "ok", _("%d answer.") % len(workers))
    else:
        mend = _("Start `celery --app=yoco.celery worker` with the same REDIS_URL and DATABASE_URL.")
        yield Finding(part, "fault", _("None answers."), mend)


def email() -> Iterator[Finding]:
    part = _("e-mail")
    backend = settings.EMAIL_BACKEND.split(".")[-2]
    if backend != "smtp":
        said = _("It goes nowhere: EMAIL_URL names “%s”.") % backend
        yield Finding(part, "fault", said, _("Set EMAIL_URL, such as smtp+tls://user:password@host:587."))
        return
    if urlsplit(f"//{settings.DEFAULT_FROM_EMAIL.rpartition('@')[2].rstrip('>')}").hostname in ("localhost", None):
        said = _("The sender %s is nobody's.") % settings.DEFAULT_FROM_EMAIL
        yield Finding(part, "fault", said, _("Set DEFAULT_FROM_EMAIL to an address of your domain."))
    mail = get_connection()
    try:
        mail.open()
        mail.close()
    except OSError as error:  # SMTP's own errors are of this kind too
        said = _("The mail server refuses (%s).") % type(error).__name__
        mend = _("Check host, port, user and password in EMAIL_URL, and that this machine may connect there.")
        yield Finding(part, "fault", said, mend)
    else:
        yield Finding(part, "ok", _("The mail server lets us in."))


def deployment() -> Iterator[Finding]:
    """Django's own checks for production and ours: SECRET_KEY, HTTPS, cookies, headers, hosts."""
    part = _("settings")
    found = [one for one in checks.run_checks(include_deployment_checks=True) if not one.is_silenced()]
    for one in found:
        mend = str(one.hint or _("See `manage.py check --deploy` and docs/settings.md."))
        yield Finding(part, "fault", f"{one.id}: {' '.join(str(one.msg).split())}", " ".join(mend.split()))
    if not found:
        yield Finding(part, "ok", _("`check --deploy` has nothing to say."))


def disk() -> Iterator[Finding]:
    part = _("disk")
    places = [Path(tempfile.gettempdir())]
    if connection.vendor == "sqlite":
        places.append(Path(str(settings.DATABASES["default"]["NAME"])).absolute().parent)
    for place in places:
        try:
            with tempfile.TemporaryFile(dir=place):
                free = shutil.disk_usage(place).free
        except OSError as error:
            said = _("Nothing can be written in %(place)s (%(error)s).") % {"place": place, "error": error.strerror}
            yield Finding(part, "fault", said, _("Uploads wait there: let the service write in it, or set TMPDIR."))
            continue
        said = _("%(place)s has %(free).1f GiB free.") % {"place": place, "free": free / 1024**3}
        if free < DISK_NEEDED:
            yield Finding(part, "fault", said, _("Make room: it needs at least 1 GiB."))
        else:
            yield Finding(part, "ok", said)


def clock() -> Iterator[Finding]:
    part = _("clock")
    others: dict[str, Callable[[], float]] = {}
    if connection.vendor == "postgresql":
        others["PostgreSQL"] = _database_time
    if settings.REDIS_URL:
        others["Redis"] = lambda: float(broker(settings.REDIS_URL).time()[0])
    for name, ask in others.items():
        try:
            differs = abs(ask() - time.time())
        except (Error, redis.RedisError):
            continue  # it has its own finding
        said = _("It differs from that of %(name)s by %(seconds).1f s.") % {"name": name, "seconds": differs}
        if differs > CLOCK_MAY_DIFFER_S:
            yield Finding(part, "fault", said, _("Let both machines follow NTP: silences are counted by the clock."))
        else:
            yield Finding(part, "ok", said)


def _database_time() -> float:
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())")
        return float(cursor.fetchone()[0])


def public_address() -> Iterator[Finding]:
    part = _("public address")
    site = urlsplit(settings.SITE_URL)
    mend = _("Set SITE_URL to the address that people open: links in e-mails begin with it.")
    if site.scheme not in ("http", "https") or not site.hostname:
        yield Finding(part, "fault", _("SITE_URL %s is no address.") % settings.SITE_URL, mend)
        return
    if site.hostname in ("localhost", "127.0.0.1", "::1"):
        yield Finding(part, "fault", _("SITE_URL %s leads nowhere from elsewhere.") % settings.SITE_URL, mend)
    elif settings.HTTPS and site.scheme != "https":
        yield Finding(part, "fault", _("SITE_URL %s is not HTTPS.") % settings.SITE_URL, mend)
    try:
        answer = httpx.get(f"{settings.SITE_URL.rstrip('/')}/healthz", timeout=5)
    except httpx.HTTPError as error:
        said = _("It was not reached from here (%s).") % type(error).__name__
        yield Finding(part, "note", said, _("Open it from outside; a machine behind the proxy may not reach it."))
        return
    if answer.status_code == 200 and answer.text == '{"status": "ok"}':
        yield Finding(part, "ok", _("%s answers.") % settings.SITE_URL)
    else:
        said = _("Something else answers at SITE_URL, or refuses: status %d.") % answer.status_code
        yield Finding(part, "fault", said, _("Check the proxy, ALLOWED_HOSTS and TRUST_FORWARDED_PROTO."))


# Those of the first list ask the database, and are left out while it does not answer.
OF_THE_DATABASE = [role, migrations, triggers, time_zones, due_work]
OTHERS = [redis_server, email, deployment, disk, clock, public_address]


def findings() -> Iterator[Finding]:
    """Everything, in the order in which faults are best mended. A check that cannot be made is a fault itself."""
    of_the_database = list(database())
    yield from of_the_database
    reachable = all(one.state != "fault" for one in of_the_database)
    for check in [*(OF_THE_DATABASE if reachable else []), *OTHERS]:
        try:
            yield from check()
        except Error as error:
            said = _("It could not be looked at: %s") % str(error).partition("\n")[0]
            yield Finding(check.__name__, "fault", said, _("Mend the faults above first."))
