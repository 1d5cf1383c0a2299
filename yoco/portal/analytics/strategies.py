"""The scenario calculator's answer as a table and as its chart."""

from collections.abc import Sequence

from django.utils.translation import gettext as _

from yoco.guarantee.analytics.tables import Table
from yoco.guarantee.scenarios import STRATEGY_LABELS
from yoco.portal.analytics.figures import Figure, figure, height_of, hours, lying_bars
from yoco.waste.scenario import Outcome


def strategies_table(outcomes: Sequence[Outcome]) -> Table:
    """A year under each strategy; `saved_money` is against the first, the checkpoint restart."""
    return Table(
        "strategies",
        ("strategy", "lost_gpu_ms", "money", "saved_money", "effective_share", "idle_gpu_ms", "idle_money"),
        [
            (
                one.strategy,
                one.lost_gpu_ms,
                one.money,
                outcomes[0].money - one.money,
                float(one.effective_share),
                one.idle_gpu_ms,
                one.idle_money,
            )
            for one in outcomes
        ],
    )


def strategies_figure(table: Table) -> Figure:
    """GPU-hours lost in a year by strategy, and those of idle spares, which are no part of them, behind."""
    rows = table.records()
    labels = [str(STRATEGY_LABELS[row["strategy"]]) for row in rows]
    return figure(
        [
            lying_bars(_("Lost"), labels, [hours(row["lost_gpu_ms"]) for row in rows], "--bad-fill"),
            lying_bars(_("Idle spares"), labels, [hours(row["idle_gpu_ms"]) for row in rows], "--quiet-fill"),
        ],
        x={"title": {"text": _("GPU-hours")}},
        y={"autorange": "reversed"},
        height=height_of(len(rows)),
        barmode="stack",
    )
