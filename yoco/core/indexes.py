"""An index on a table that grows: made without holding writers off. Its migration has `atomic = False`."""

from typing import Any

from django.contrib.postgres.operations import AddIndexConcurrently


class AddIndexOnline(AddIndexConcurrently):
    """CREATE INDEX CONCURRENTLY on PostgreSQL; SQLite, which has one writer at most, makes an index at once."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        add: Any = super() if schema_editor.connection.vendor == "postgresql" else super(AddIndexConcurrently, self)
        add.database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        remove: Any = super() if schema_editor.connection.vendor == "postgresql" else super(AddIndexConcurrently, self)
        remove.database_backwards(app_label, schema_editor, from_state, to_state)
