from django.db import migrations

from yoco.core.append_only import AppendOnly


class Migration(migrations.Migration):
    dependencies = [("core", "0003_outboxevent")]
    operations = [AppendOnly("core_outboxevent")]
