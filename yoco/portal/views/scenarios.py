"""The scenario calculator: what a year of failures costs, by the way to survive them. The question is in the URL."""

from decimal import Decimal
from typing import Any

from django import forms
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from yoco.guarantee.scenarios import ANCHOR_CHOICES, DEFAULTS, PRESETS, STRATEGY_LABELS, Answer, Preset, scenario_answer
from yoco.portal.analytics.files import table_download
from yoco.portal.analytics.strategies import strategies_figure, strategies_table


class ScenarioForm(forms.Form):
    """A question in people's units."""

    gpus = forms.IntegerField(label=_("GPUs of the job"), min_value=1, max_value=10_000_000)
    gpus_per_node = forms.IntegerField(label=_("GPUs per node"), min_value=1, max_value=1024)
    price = forms.DecimalField(label=_("Price of a GPU-hour"), min_value=0, max_digits=9, decimal_places=4)
    anchor = forms.ChoiceField(
        label=_("Failures per 1,000 node-days"),
        choices=ANCHOR_CHOICES,
        help_text=_("Published figures, each measured on its own fleet."),
    )
    rate = forms.DecimalField(
        label=_("My failures per 1,000 node-days"), min_value=0, max_digits=12, decimal_places=4, required=False
    )
    failures = forms.DecimalField(
        label=_("Or my failures a year"), min_value=0, max_digits=40, decimal_places=30, required=False
    )
    checkpoint_minutes = forms.DecimalField(label=_("Checkpoint interval, minutes"), min_value=0, max_value=525_600)
    detection_minutes = forms.DecimalField(label=_("Noticing a failure, minutes"), min_value=0, max_value=525_600)
    queue_minutes = forms.DecimalField(label=_("Waiting for a node, minutes"), min_value=0, max_value=525_600)
    restart_minutes = forms.DecimalField(label=_("Restart, minutes"), min_value=0, max_value=525_600)
    migration_seconds = forms.DecimalField(label=_("Migration pause, seconds"), min_value=0, max_value=31_536_000)
    step_seconds = forms.DecimalField(label=_("One step, seconds"), min_value=0, max_value=31_536_000)
    resolved_percent = forms.DecimalField(
        label=_("Failures resolved by migration, per cent"), min_value=0, max_value=100
    )
    replica_groups = forms.IntegerField(label=_("Replica groups"), min_value=1)
    spare_nodes = forms.IntegerField(label=_("Spare nodes"), min_value=0, max_value=100_000)
    repair_hours = forms.DecimalField(label=_("Repair of a node, hours"), min_value=0, max_value=8760)
    spares_target = forms.DecimalField(
        label=_("Wanted chance that a spare is free, per cent"),
        min_value=1,
        max_value=Decimal("99.9999"),
    )


def _asked(request: HttpRequest) -> tuple[ScenarioForm, Preset | None, Answer | None]:
    """What the address asks, and its answer; None where a field makes no sense."""
    preset = PRESETS.get(request.GET.get("preset", ""))
    values: dict[str, Any] = DEFAULTS | (preset.values if preset else {})
    asked = None if preset else {name: request.GET[name] for name in DEFAULTS if name in request.GET}
    form = ScenarioForm({**values, **(asked or {})})
    if not form.is_valid():
        return form, preset, None
    answer = scenario_answer(form.cleaned_data)
    for field, sentence in answer.refused:
        form.add_error(field if field in form.fields else None, sentence)
    return form, preset, answer


@require_GET
@login_required
def scenario(request: HttpRequest) -> HttpResponse:
    """GET alone: the form's values are the address, so that an answer can be sent to a colleague."""
    form, preset, answer = _asked(request)
    rows = []
    if answer is not None and answer.baseline is not None:
        rows = [(STRATEGY_LABELS[one.strategy], one, answer.baseline.money - one.money) for one in answer.outcomes]
    context = {
        "section": "scenarios",
        "form": form,
        "answer": answer,
        "rows": rows,
        "has_figures": bool(rows),
        "figure": strategies_figure(strategies_table(answer.outcomes)) if answer and rows else None,
        "presets": PRESETS.items(),
        "preset": preset,
    }
    return render(request, "portal/scenario.html", context)


@require_GET
@login_required
def scenario_file(request: HttpRequest, kind: str) -> HttpResponse:
    """The strategies as CSV or Parquet, of the same question as the page; 404 for one that has no answer."""
    _form, _preset, answer = _asked(request)
    if answer is None or not answer.outcomes:
        raise Http404
    return table_download(strategies_table(answer.outcomes), kind, "scenario")
