from django.db import migrations

from yoco.core.append_only import AppendOnly


class Migration(migrations.Migration):
    """A version of the terms is never changed: the next version takes effect at its date."""

    dependencies = [("contracts", "0002_open_incident_cutoff")]
    operations = [AppendOnly("contracts_guaranteeterms")]
