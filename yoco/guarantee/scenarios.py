"""The scenario calculator for both faces: what may be asked, what is answered, and the sentences of what is refused."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from yoco.core.templatetags.formats import number
from yoco.waste.anchors import DEFAULT_RATE, RATES, rate_of
from yoco.waste.model import MINUTE_MS
from yoco.waste.rates import nodes_of
from yoco.waste.scenario import (
    ANNOUNCEMENT,
    MONTHLY_BILL,
    Outcome,
    Refusal,
    Scenario,
    failures_per_year,
    outcomes,
    refusals,
    scenario_of,
)
from yoco.waste.spares import nodes_down, spares_for

OWN = "own"
# Values of a question in people's units; a preset replaces some of them.
DEFAULTS: dict[str, Any] = {
    "gpus": 2048,
    "gpus_per_node": 8,
    "price": Decimal("2.50"),
    "anchor": "default",
    "rate": None,
    "failures": None,
    "checkpoint_minutes": Decimal(60),
    "detection_minutes": Decimal(10),
    "queue_minutes": Decimal(5),
    "restart_minutes": Decimal(15),
    "migration_seconds": Decimal(180),
    "step_seconds": Decimal(0),
    "resolved_percent": Decimal(90),
    "replica_groups": 8,
    "spare_nodes": 4,
    "repair_hours": Decimal(24),
    "spares_target": Decimal("99.9"),
}


@dataclass(frozen=True, slots=True)
class Preset:
    """A published figure and the assumptions under which it comes out."""

    label: str | Promise
    note: str | Promise
    values: dict[str, Any]


def _figures(scenario: Scenario) -> dict[str, Any]:
    """What a published figure rests on, in the question's units."""
    return {
        "gpus": scenario.gpus,
        "price": scenario.price,
        "anchor": OWN,
        "failures": scenario.failures_per_year,
        "checkpoint_minutes": Decimal(scenario.checkpoint_interval_ms) / MINUTE_MS,
        "detection_minutes": Decimal(scenario.detection_ms) / MINUTE_MS,
        "queue_minutes": Decimal(scenario.queue_ms) / MINUTE_MS,
        "restart_minutes": Decimal(scenario.restart_ms) / MINUTE_MS,
    }


PRESETS = {
    "announcement": Preset(
        gettext_lazy("Announcement: more than 6 million USD a year"),
        gettext_lazy(
            "Holds for 390.6 failures a year of three hours each (here 10 + 5 + 15 minutes and half of a checkpoint "
            "interval of five hours), 2,048 GPUs at 2.50 USD, with a checkpoint restart. Together with the announced "
            "hundreds of thousands of GPU-hours it would take a price of at least 6.00 USD."
        ),
        _figures(ANNOUNCEMENT),
    ),
    "monthly_bill": Preset(
        gettext_lazy("Published bill: 307,524 USD a month"),
        gettext_lazy(
            "Holds for 1,024 GPUs at 3.00 USD, a failure each 7.9 hours, a checkpoint each 1.5 hours, 20 minutes to "
            "replace, restore and start, and months of 730 hours, with a checkpoint restart."
        ),
        _figures(MONTHLY_BILL),
    ),
}

STRATEGY_LABELS = {
    "checkpoint_restart": gettext_lazy("Checkpoint restart"),
    "shrinking_groups": gettext_lazy("Shrinking replica groups"),
    "hot_spares": gettext_lazy("Hot spares, checkpoint restart"),
    "live_migration": gettext_lazy("Live migration"),
}


@dataclass(frozen=True, slots=True)
class Spares:
    """The smallest pools of spare nodes that are enough with the wanted chance, by both distributions."""

    poisson: int
    binomial: int
    mean_down: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What a scenario comes to; with a refusal there are no outcomes."""

    scenario: Scenario
    refused: list[tuple[str, str]]
    outcomes: list[Outcome]
    spares: Spares | None

    @property
    def baseline(self) -> Outcome | None:
        """The checkpoint restart, with which the others are compared."""
        return self.outcomes[0] if self.outcomes else None


def scenario_answer(question: dict[str, Any]) -> Answer:
    """Calculates a question that has every name of DEFAULTS. What is impossible is refused by field and sentence."""
    given = dict(question)
    target = given.pop("spares_target") / 100
    anchor, rate, failures = given.pop("anchor"), given.pop("rate"), given.pop("failures")
    if anchor != OWN:
        rate, failures = Decimal(str(rate_of(anchor))), None
    elif failures is None and rate is None:
        rate = Decimal(str(DEFAULT_RATE))
    nodes = nodes_of(given["gpus"], given["gpus_per_node"])
    if failures is None:
        failures = failures_per_year(gpus=given["gpus"], gpus_per_node=given["gpus_per_node"], rate=rate)
    scenario = scenario_of(**given, failures_per_year=failures)
    refused = refusals(scenario)
    if refused:
        return Answer(
            scenario, [(FIELDS.get(one.field, one.field), refusal_sentence(one)) for one in refused], [], None
        )
    per_node = float(failures) * 1000 / 365 / nodes
    fleet = {"nodes": nodes, "rate": per_node, "repair_hours": float(given["repair_hours"])}
    spares = Spares(
        poisson=spares_for(target=float(target), method="poisson", **fleet),  # type: ignore[arg-type]
        binomial=spares_for(target=float(target), method="binomial", **fleet),  # type: ignore[arg-type]
        mean_down=nodes_down(**fleet),  # type: ignore[arg-type]
    )
    return Answer(scenario, [], outcomes(scenario), spares)


# The fields of a scenario by the name that the question has for them.
FIELDS = {
    "failures_per_year": "failures",
    "checkpoint_interval_ms": "checkpoint_minutes",
    "detection_ms": "detection_minutes",
    "queue_ms": "queue_minutes",
    "restart_ms": "restart_minutes",
    "migration_ms": "migration_seconds",
    "step_ms": "step_seconds",
    "resolved_share": "resolved_percent",
    "repair_ms": "repair_hours",
}


def refusal_sentence(refusal: Refusal) -> str:
    """Why a combination cannot be, and what would mend it."""
    values = refusal.values
    if refusal.code == "not_divisible":
        return _("%(gpus)s GPUs cannot be split into %(groups)s equal replica groups.") % values
    if refusal.code == "no_interval":
        return _("The checkpoint interval must be longer than zero.")
    if refusal.code == "interval_beyond_mttf":
        return _(
            "A failure comes each %(hours)s hours on average, before the next checkpoint: the job would hardly ever "
            "get from one checkpoint to the next. Choose a shorter interval."
        ) % {"hours": number(values["mttf"], 2)}
    if refusal.code == "no_progress":
        return _(
            "A failure comes each %(hours)s hours on average, and getting over one takes longer: the job would never "
            "progress. Choose fewer failures or shorter times."
        ) % {"hours": number(values["mttf"], 2)}
    return _("Must lie between %(low)s and %(high)s.") % values


ANCHOR_CHOICES = [
    (OWN, gettext_lazy("My own figure")),
    *((one.code, f"{one.source}: {one.rate}") for one in RATES),
]
