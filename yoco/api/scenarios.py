"""The scenario calculator for machines."""

from decimal import Decimal
from http import HTTPStatus
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from yoco.api.read import Reader
from yoco.api.schema import problems
from yoco.core.problem import problem
from yoco.guarantee.scenarios import ANCHOR_CHOICES, DEFAULTS, Answer, scenario_answer
from yoco.waste.model import gpu_seconds
from yoco.waste.scenario import STRATEGIES


def _decimal(**limits: Any) -> serializers.DecimalField:
    return serializers.DecimalField(max_digits=40, decimal_places=12, **limits)


class ScenarioQuestion(serializers.Serializer[dict[str, Any]]):
    """What is not given has the default that the page shows."""

    gpus = serializers.IntegerField(min_value=1, max_value=10_000_000, default=DEFAULTS["gpus"])
    gpus_per_node = serializers.IntegerField(min_value=1, max_value=1024, default=DEFAULTS["gpus_per_node"])
    price = _decimal(min_value=0, max_value=1_000_000, default=DEFAULTS["price"])
    anchor = serializers.ChoiceField(choices=ANCHOR_CHOICES, default=DEFAULTS["anchor"])
    rate = _decimal(min_value=0, max_value=1_000_000, default=None, allow_null=True)
    failures = _decimal(min_value=0, max_value=100_000_000, default=None, allow_null=True)
    checkpoint_minutes = _decimal(min_value=0, max_value=525_600, default=DEFAULTS["checkpoint_minutes"])
    detection_minutes = _decimal(min_value=0, max_value=525_600, default=DEFAULTS["detection_minutes"])
    queue_minutes = _decimal(min_value=0, max_value=525_600, default=DEFAULTS["queue_minutes"])
    restart_minutes = _decimal(min_value=0, max_value=525_600, default=DEFAULTS["restart_minutes"])
    migration_seconds = _decimal(min_value=0, max_value=31_536_000, default=DEFAULTS["migration_seconds"])
    step_seconds = _decimal(min_value=0, max_value=31_536_000, default=DEFAULTS["step_seconds"])
    resolved_percent = _decimal(min_value=0, max_value=100, default=DEFAULTS["resolved_percent"])
    replica_groups = serializers.IntegerField(min_value=1, max_value=10_000_000, default=DEFAULTS["replica_groups"])
    spare_nodes = serializers.IntegerField(min_value=0, max_value=100_000, default=DEFAULTS["spare_nodes"])
    repair_hours = _decimal(min_value=0, max_value=8760, default=DEFAULTS["repair_hours"])
    spares_target = _decimal(min_value=1, max_value=Decimal("99.9999"), default=DEFAULTS["spares_target"])


class StrategyYear(serializers.Serializer[Any]):
    """A year under one strategy. Money is in the currency of the price given."""

    strategy = serializers.ChoiceField(choices=[(name, name) for name in STRATEGIES])
    per_failure_gpu_seconds = serializers.CharField()
    lost_gpu_seconds = serializers.CharField()
    money = serializers.CharField()
    money_a_month = serializers.CharField()
    idle_gpu_seconds = serializers.CharField()
    idle_money = serializers.CharField()
    effective_percent = serializers.CharField()


class SparePools(serializers.Serializer[Any]):
    poisson = serializers.IntegerField()
    binomial = serializers.IntegerField()
    mean_down = serializers.FloatField()


class ScenarioAnswer(serializers.Serializer[Any]):
    """Losses a year by strategy, and how many spare nodes are enough."""

    failures_per_year = serializers.CharField()
    strategies = StrategyYear(many=True)
    spares = SparePools()


class ScenariosView(APIView):
    """What a year of failures costs, by the way to survive them."""

    permission_classes = [Reader]

    @extend_schema(
        operation_id="scenarios_get",
        parameters=[ScenarioQuestion],
        responses={200: ScenarioAnswer, **problems(422)},
        tags=["scenarios"],
    )
    def get(self, request: Request) -> Response:
        """Calculates a scenario; an impossible combination answers 422 with the reason by field."""
        question = ScenarioQuestion(data=request.query_params)
        question.is_valid(raise_exception=True)
        answer = scenario_answer(question.validated_data)
        if answer.refused:
            errors: dict[str, list[str]] = {}
            for field, sentence in answer.refused:
                errors.setdefault(field, []).append(sentence)
            return problem(
                HTTPStatus.UNPROCESSABLE_ENTITY, "This combination is impossible.", code="impossible", errors=errors
            )
        return Response(_told(answer))


def _told(answer: Answer) -> dict[str, Any]:
    assert answer.spares is not None  # nothing was refused
    return {
        "failures_per_year": str(answer.scenario.failures_per_year),
        "strategies": [
            {
                "strategy": one.strategy,
                "per_failure_gpu_seconds": gpu_seconds(one.per_failure_gpu_ms),
                "lost_gpu_seconds": gpu_seconds(one.lost_gpu_ms),
                "money": str(one.money),
                "money_a_month": f"{one.money_a_month:.2f}",
                "idle_gpu_seconds": gpu_seconds(one.idle_gpu_ms),
                "idle_money": str(one.idle_money),
                "effective_percent": str(one.effective_percent),
            }
            for one in answer.outcomes
        ],
        "spares": {
            "poisson": answer.spares.poisson,
            "binomial": answer.spares.binomial,
            "mean_down": answer.spares.mean_down,
        },
    }
