"""Without blocking writers on PostgreSQL; SQLite, which has one writer at most, makes an index at once."""

from typing import Any

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class AddIndex(AddIndexConcurrently):
    """CREATE INDEX CONCURRENTLY where there is such a thing."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        add = super() if schema_editor.connection.vendor == "postgresql" else super(AddIndexConcurrently, self)
        add.database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        remove = super() if schema_editor.connection.vendor == "postgresql" else super(AddIndexConcurrently, self)
        remove.database_backwards(app_label, schema_editor, from_state, to_state)


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("core", "0005_outbox_pending")]
    operations = [
        AddIndex(
            model_name="auditentry",
            index=models.Index(fields=["organisation_id", "-at", "-id"], name="audit_by_organisation"),
        ),
        AddIndex(model_name="auditentry", index=models.Index(fields=["-at", "-id"], name="audit_by_time")),
    ]
