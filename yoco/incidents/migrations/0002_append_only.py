from django.db import migrations

from yoco.core.append_only import AppendOnly


class Migration(migrations.Migration):
    dependencies = [("incidents", "0001_initial")]
    operations = [AppendOnly("incidents_rawreport")]
