"""The chart of the scenario calculator."""

from collections.abc import Sequence

from django.utils.translation import gettext as _

from yoco.guarantee.scenarios import STRATEGY_LABELS
from yoco.portal.analytics.figures import Figure, figure, height_of, hours, lying_bars
from yoco.waste.scenario import Outcome


def strategies_figure(outcomes: Sequence[Outcome]) -> Figure:
    """GPU-hours lost in a year by strategy, and those of idle spares, which are no part of them, behind."""
    labels = [str(STRATEGY_LABELS[one.strategy]) for one in outcomes]
    return figure(
        [
            lying_bars(_("Lost"), labels, [hours(one.lost_gpu_ms) for one in outcomes], "--bad-fill"),
            lying_bars(_("Idle spares"), labels, [hours(one.idle_gpu_ms) for one in outcomes], "--quiet-fill"),
        ],
        x={"title": {"text": _("GPU-hours")}},
        y={"autorange": "reversed"},
        height=height_of(len(outcomes)),
        barmode="stack",
    )
