"""The reliability analytics of a contract year for machines: the same tables that the pages draw."""

from typing import Any

from rest_framework import serializers

from yoco.contracts.models import ContractYear
from yoco.guarantee.analytics.selectors import Given, year_analytics


class AnalyticsQuestion(serializers.Serializer[dict[str, Any]]):
    """What nobody reports: without it, idle spares are left out and a checkpoint takes a minute to write."""

    spare_nodes = serializers.IntegerField(min_value=0, max_value=100_000, default=None, allow_null=True)
    write_seconds = serializers.DecimalField(
        max_digits=8, decimal_places=3, min_value=0, max_value=86_400, default=None, allow_null=True
    )


class AnalyticsSerializer(serializers.Serializer[Any]):
    """Tables by code, each a list of rows by column; docs/analysis.md names the columns and their units."""

    as_of = serializers.DateTimeField()
    currency = serializers.CharField()
    price_per_gpu_hour = serializers.CharField(allow_null=True)
    tables = serializers.DictField(child=serializers.ListField(child=serializers.DictField()))


def analytics_told(year: ContractYear, asked: dict[str, Any]) -> dict[str, Any]:
    """Every table of the year as it stands now."""
    seconds = asked["write_seconds"]
    given = Given(asked["spare_nodes"], None if seconds is None else round(seconds * 1000))
    found = year_analytics(year=year, given=given)
    price = year.contract.price_per_gpu_hour
    return {
        "as_of": found.scope.now,
        "currency": year.contract.currency,
        "price_per_gpu_hour": None if price is None else str(price),
        "tables": {code: table.records() for code, table in found.tables.items()},
    }
