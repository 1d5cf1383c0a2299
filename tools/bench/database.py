"""A throw-away PostgreSQL with its data in memory, migrated once, and Django in this process connected to it."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import psycopg
from psycopg import sql

from tools.bench.registry import CannotRun
from tools.services import HOST, Postgres, ServiceError, scratch_directory

TEMPLATE = "yoco"


@contextmanager
def cluster() -> Iterator[Postgres]:
    """A running PostgreSQL whose database `yoco` is migrated and has no rows; Django uses it from now on."""
    with scratch_directory() as directory:
        try:
            server = Postgres(directory)
            server.start()
        except ServiceError as error:
            raise CannotRun(str(error)) from None
        try:
            django_connect(server.url)
            from django.core.management import call_command

            call_command("migrate", verbosity=0)
            yield server
        finally:
            django_disconnect()
            server.stop()


@cache
def _django_setup() -> None:
    import django

    os.environ["DJANGO_SETTINGS_MODULE"] = "yoco.settings"
    django.setup()


def django_connect(url: str) -> None:
    """Points Django's connection of this process at another database."""
    os.environ["DATABASE_URL"] = url
    _django_setup()
    import environ
    from django.db import connection

    connection.close()
    fresh: dict[str, Any] = environ.Env.db_url_config(url)
    connection.settings_dict.update({name: fresh[name] for name in ("NAME", "HOST", "PORT", "USER", "PASSWORD")})


def django_disconnect() -> None:
    from django.db import connections

    connections.close_all()


def database_copy(server: Postgres, source: str = TEMPLATE) -> str:
    """The URL of a new database that is a copy of `source`, to which nobody may be connected."""
    django_disconnect()
    name = f"bench_{secrets.token_hex(4)}"
    copy = sql.SQL("CREATE DATABASE {} OWNER yoco TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(source))
    with superuser(server, "postgres") as admin:
        admin.execute(copy)
    return database_url(server, name)


def database_drop(server: Postgres, url: str) -> None:
    django_disconnect()
    drop = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(database_name(url)))
    with superuser(server, "postgres") as admin:
        admin.execute(drop)


def database_url(server: Postgres, name: str) -> str:
    return f"{server.url.rpartition('/')[0]}/{name}"


def database_name(url: str) -> str:
    return url.rpartition("/")[2]


def superuser(server: Postgres, database: str) -> psycopg.Connection[Any]:
    """A connection that may load rows without the triggers that check what the application writes."""
    return psycopg.connect(
        host=HOST, port=server.port, user="postgres", password=server.password, dbname=database, autocommit=True
    )


class Queries:
    """Counts the queries of Django's connection and the time they took, seen from here: `execute_wrapper(queries)`."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    def __call__(self, execute: Any, query: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        began = time.perf_counter()
        try:
            return execute(query, params, many, context)
        finally:
            self.seconds += time.perf_counter() - began
            self.count += 1


@contextmanager
def queries_counted() -> Iterator[Queries]:
    from django.db import connection

    queries = Queries()
    with connection.execute_wrapper(queries):
        yield queries
