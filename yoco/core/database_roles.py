"""What PostgreSQL lets the service do. One role owns the tables and migrates; the other serves and owns nothing.

The triggers of append-only tables refuse a mistake; a role that owns a table could switch them off. The serving role
does not, and has no right to UPDATE, DELETE or TRUNCATE there in the first place. `deploy/postgres/roles.sql` makes
both roles; here is what the serving one may do with each table.
"""

from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import sql

APP_ROLE = "yoco_app"
# Written by migrations only.
READ_ONLY = {"django_migrations", "django_content_type", "auth_permission", "auth_group", "auth_group_permissions"}
# Rows end by a state or a date of theirs; no code deletes one.
NEVER_DELETED = {
    "accounts_agentkey",
    "accounts_membership",
    "accounts_organisation",
    "accounts_user",
    "contracts_contract",
    "contracts_order",
    "credits_credit",
    "incidents_dispute",
    "incidents_exclusion",
    "incidents_incident",
}
TABLES = """
SELECT c.relname, EXISTS (
    SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE t.tgrelid = c.oid AND p.proname = 'yoco_refuse_change'
)
FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') ORDER BY c.relname
"""
EXCESS = """
SELECT c.relname, v.verb
FROM pg_class c, unnest(ARRAY['UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER']) AS v(verb)
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p')
  AND has_table_privilege(c.oid, v.verb)
  AND EXISTS (SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
              WHERE t.tgrelid = c.oid AND p.proname = 'yoco_refuse_change')
ORDER BY 1, 2
"""
OWNED = """
SELECT c.relname FROM pg_class c
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p')
  AND pg_has_role(c.relowner, 'MEMBER')
ORDER BY 1
"""


def rights(table: str, *, append_only: bool) -> list[str]:
    """What the serving role may do with a table."""
    if table in READ_ONLY:
        return ["SELECT"]
    if append_only:
        return ["SELECT", "INSERT"]
    return ["SELECT", "INSERT", "UPDATE"] + ([] if table in NEVER_DELETED else ["DELETE"])


def grants(connection: BaseDatabaseWrapper, role: str) -> list[str]:
    """The statements that give `role` its rights on every table of the current schema, and take all others from it.

    A table made later has none until they run again, so a forgotten run refuses instead of exposing.
    """
    statements = []
    with connection.cursor() as cursor:
        cursor.execute(TABLES)
        for table, append_only in cursor.fetchall():
            name, to = sql.Identifier(table), sql.Identifier(role)
            verbs = sql.SQL(", ").join(sql.SQL(verb) for verb in rights(table, append_only=append_only))
            statements.append(sql.SQL("REVOKE ALL ON {} FROM {}, PUBLIC").format(name, to).as_string(None))
            statements.append(sql.SQL("GRANT {} ON {} TO {}").format(verbs, name, to).as_string(None))
    return statements


def excess(connection: BaseDatabaseWrapper) -> list[str]:
    """What the role of this connection may do and the service never needs; empty for a serving role as it should be."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
        if cursor.fetchone()[0]:
            return ["is a superuser"]
        cursor.execute(OWNED)
        owned = [table for (table,) in cursor.fetchall()]
        if owned:
            return [f"owns {len(owned)} tables, {owned[0]} among them, and could switch their triggers off"]
        cursor.execute(EXCESS)
        return [f"may {verb} {table}" for table, verb in cursor.fetchall()]
