"""allauth's row for the address of each person who was here before: without it a change of address would clear the old."""

from typing import Any

from django.db import migrations


def fill(apps: Any, schema_editor: Any) -> None:
    users, addresses = apps.get_model("accounts", "User"), apps.get_model("account", "EmailAddress")
    known = addresses.objects.values("user_id")
    addresses.objects.bulk_create(
        [
            addresses(user=user, email=user.email, verified=True, primary=True)
            for user in users.objects.exclude(pk__in=known).only("pk", "email")
        ]
    )


class Migration(migrations.Migration):
    dependencies = [("accounts", "0003_invitation"), ("account", "0009_emailaddress_unique_primary_email")]

    operations = [migrations.RunPython(fill, migrations.RunPython.noop)]
