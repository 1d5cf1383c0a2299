from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('guarantee', '0004_import_files'),
    ]

    operations = [
        migrations.AddField(
            model_name='placement',
            name='waste_terms',
            field=models.JSONField(help_text='`actual` and `counterfactual` by term, GPU-milliseconds; null where placed before this.', null=True),
        ),
    ]
