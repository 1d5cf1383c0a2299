"""The metrics count what was given up. Made without blocking writers, as core's indexes are."""

from django.db import migrations, models

from yoco.core.indexes import AddIndexOnline

DEAD = models.Q(("state", "dead"))


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("notify", "0001_initial"), ("core", "0006_audit_indexes")]
    operations = [
        AddIndexOnline(
            model_name="maildelivery",
            index=models.Index(condition=DEAD, fields=["ended_at"], name="mail_delivery_dead"),
        ),
        AddIndexOnline(
            model_name="webhookdelivery",
            index=models.Index(condition=DEAD, fields=["ended_at"], name="webhook_delivery_dead"),
        ),
    ]
