"""Without blocking writers on PostgreSQL; SQLite, which has one writer at most, makes an index at once."""

from django.db import migrations, models

from yoco.core.indexes import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("core", "0005_outbox_pending")]
    operations = [
        AddIndexOnline(
            model_name="auditentry",
            index=models.Index(fields=["organisation_id", "-at", "-id"], name="audit_by_organisation"),
        ),
        AddIndexOnline(model_name="auditentry", index=models.Index(fields=["-at", "-id"], name="audit_by_time")),
    ]
