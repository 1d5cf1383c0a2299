"""The metrics count what was given up. Made without blocking writers, as core's indexes are."""

from importlib import import_module

from django.db import migrations, models

AddIndex = import_module("yoco.core.migrations.0006_audit_indexes").AddIndex
DEAD = models.Q(("state", "dead"))


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("notify", "0001_initial"), ("core", "0006_audit_indexes")]
    operations = [
        AddIndex(
            model_name="maildelivery",
            index=models.Index(condition=DEAD, fields=["ended_at"], name="mail_delivery_dead"),
        ),
        AddIndex(
            model_name="webhookdelivery",
            index=models.Index(condition=DEAD, fields=["ended_at"], name="webhook_delivery_dead"),
        ),
    ]
