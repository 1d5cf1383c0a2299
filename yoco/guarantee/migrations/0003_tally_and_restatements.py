import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('contracts', '0002_open_incident_cutoff'),
        ('guarantee', '0002_append_only'),
        ('incidents', '0005_review_four_eyes'),
    ]

    operations = [
        migrations.CreateModel(
            name='RestatementDue',
            fields=[
                ('year', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, primary_key=True, related_name='restatement_due', serialize=False, to='contracts.contractyear')),
                ('reasons', models.JSONField(default=list, help_text='Stable codes of what changed, in the order they were seen.')),
                ('since', models.DateTimeField(default=django.utils.timezone.now)),
            ],
        ),
        migrations.AddField(
            model_name='statement',
            name='summary',
            field=models.JSONField(null=True, help_text='`report` of the canonical JSON, to read without its incidents.'),
        ),
        # Placements are recomputed from incidents, so the table is made anew instead of filled with defaults.
        migrations.DeleteModel(
            name='Placement',
        ),
        migrations.CreateModel(
            name='Placement',
            fields=[
                ('incident', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, primary_key=True, related_name='placement', serialize=False, to='incidents.incident')),
                ('root_event_key', models.UUIDField(null=True)),
                ('started_at', models.DateTimeField()),
                ('stall_from', models.DateTimeField(help_text='Start, or the checkpoint that the job went back to, if earlier.')),
                ('ended_at', models.DateTimeField(help_text='The latest phase that is known.')),
                ('kind', models.CharField(choices=[('unplanned', 'Unplanned'), ('preventive', 'Preventive'), ('planned', 'Planned')], help_text='The kind that the evidence allows.', max_length=10)),
                ('unit_key', models.CharField(help_text='Incidents with the same key count once.', max_length=80)),
                ('lead', models.BooleanField(help_text='The one member of its unit that the tally counts.')),
                ('outcome', models.CharField(choices=[('resolved', 'Resolved without loss'), ('not_resolved', 'Not resolved without loss'), ('pending', 'Pending'), ('unaccounted', 'Unaccounted'), ('excluded', 'Excluded'), ('not_counted', 'Not counted')], max_length=12)),
                ('rule', models.CharField(help_text='Id of the rule that decided, as in docs/guarantee.md.', max_length=40)),
                ('without_loss', models.BooleanField(help_text='All four conditions are met, whether or not the incident counts.')),
                ('evidence', models.JSONField(default=dict, help_text='The four conditions with reason codes and facts.')),
                ('synthetic', models.BooleanField(default=False)),
                ('waste_actual_ms', models.BigIntegerField(default=0, help_text='GPU-milliseconds.')),
                ('waste_counterfactual_ms', models.BigIntegerField(default=0, help_text='GPU-milliseconds.')),
                ('waste_potential_ms', models.BigIntegerField(default=0, help_text='GPU-milliseconds, never part of saved.')),
                ('waste_estimated', models.BooleanField(default=False, help_text='A default stood in for a measurement.')),
                ('incident_revision', models.PositiveIntegerField()),
                ('placed_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('run', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='incidents.run')),
                ('terms', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='contracts.guaranteeterms')),
                ('year', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='placements', to='contracts.contractyear')),
            ],
            options={
                'indexes': [models.Index(fields=['year', 'lead', 'outcome', 'kind'], include=('without_loss', 'synthetic', 'waste_actual_ms', 'waste_counterfactual_ms', 'waste_potential_ms', 'waste_estimated'), name='placement_tally'), models.Index(fields=['run', 'ended_at'], name='placement_by_run_end'), models.Index(fields=['root_event_key'], name='placement_by_root_event'), models.Index(fields=['unit_key'], name='placement_by_unit')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('lead', True)), fields=('unit_key',), name='placement_one_lead'), models.CheckConstraint(condition=models.Q(('outcome__in', ['resolved', 'not_resolved', 'pending', 'unaccounted', 'excluded', 'not_counted'])), name='placement_outcome_known')],
            },
        ),
    ]
