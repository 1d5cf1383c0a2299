from django.db import migrations

from yoco.core.append_only import AppendOnly


class Migration(migrations.Migration):
    dependencies = [("incidents", "0003_root_events_and_silence")]
    operations = [AppendOnly("incidents_regrouping")]
