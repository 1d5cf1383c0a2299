from django.db import migrations

from yoco.core.append_only import AppendOnly


class Migration(migrations.Migration):
    dependencies = [("guarantee", "0001_initial")]
    operations = [AppendOnly("guarantee_statement")]
