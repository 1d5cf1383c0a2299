"""A migration operation for SQL that differs between PostgreSQL and SQLite, such as triggers."""

from typing import Any

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState


class VendorSQL(Operation):
    """Runs one list of statements on PostgreSQL and another on SQLite; the `undo` lists take them back."""

    reduces_to_sql = True
    reversible = True

    def __init__(
        self, *, postgresql: list[str], sqlite: list[str], undo_postgresql: list[str], undo_sqlite: list[str]
    ) -> None:
        self.statements = {"postgresql": postgresql, "sqlite": sqlite}
        self.undo = {"postgresql": undo_postgresql, "sqlite": undo_sqlite}

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return (
            self.__class__.__name__,
            [],
            {
                "postgresql": self.statements["postgresql"],
                "sqlite": self.statements["sqlite"],
                "undo_postgresql": self.undo["postgresql"],
                "undo_sqlite": self.undo["sqlite"],
            },
        )

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Triggers are no part of Django's model state."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        for statement in self.statements[schema_editor.connection.vendor]:
            schema_editor.execute(statement, params=None)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        for statement in self.undo[schema_editor.connection.vendor]:
            schema_editor.execute(statement, params=None)

    def describe(self) -> str:
        return "Run SQL written for each database"
