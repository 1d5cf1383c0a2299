"""Gives the role that web, worker and beat connect as its rights on each table, and takes all others from it.

Run it as the owner of the tables after each `migrate`. Exit status 0; 1 if there is no such role or the
tables are another's; 2 for a wrong call.
"""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import ProgrammingError, connection, transaction

from yoco.core.database_roles import APP_ROLE, grants


class Command(BaseCommand):
    help = "Gives the serving database role its least rights (PostgreSQL), after each migrate."

    def add_arguments(self, parser: CommandParser) -> None:
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("--print", action="store_true", help="show the statements, run nothing")
        what.add_argument("--apply", action="store_true", help="run them, all or none")
        parser.add_argument("--role", default=APP_ROLE, help="the serving role (default: %(default)s)")

    def handle(self, *args: Any, **options: Any) -> None:
        if connection.vendor != "postgresql":
            raise CommandError("Only PostgreSQL has roles; DATABASE_URL names another database.", returncode=2)
        statements = grants(connection, options["role"])
        if options["print"]:
            self.stdout.write(";\n".join([*statements, ""]).strip())
            return
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        except ProgrammingError as error:
            raise CommandError(
                f"{str(error).splitlines()[0]}. Make the roles with deploy/postgres/roles.sql, "
                "and run this as the owner of the tables."
            ) from error
        self.stdout.write(f"{options['role']} has its rights on {len(statements) // 2} tables.")
