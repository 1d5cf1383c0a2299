"""The reliability analytics of a contract year for machines: the same tables that the pages draw."""

from typing import Any

from django.conf import settings
from django.utils import timezone
from rest_framework import serializers

from yoco.contracts.models import ContractYear
from yoco.guarantee.analytics.jobs import year_found
from yoco.guarantee.analytics.selectors import TOPICS, Analytics, Given, year_analytics
from yoco.guarantee.models import AnalyticsJob
from yoco.guarantee.tally import years_size


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


class AnalyticsJobSerializer(serializers.ModelSerializer[AnalyticsJob]):
    """How far the service is with a topic of a year of very many incidents."""

    topic = serializers.CharField(source="question.topic")

    class Meta:
        model = AnalyticsJob
        fields = ("topic", "state", "steps_done", "steps")


class AnalyticsWaitSerializer(serializers.Serializer[Any]):
    """Ask again after as many seconds as the header Retry-After says."""

    jobs = AnalyticsJobSerializer(many=True)


def analytics_told(year: ContractYear, asked: dict[str, Any]) -> dict[str, Any] | list[AnalyticsJob]:
    """Every table of the year as it stands now, or the jobs that are at it where there are very many incidents."""
    seconds = asked["write_seconds"]
    given = Given(asked["spare_nodes"], None if seconds is None else round(seconds * 1000))
    incidents, _synthetic = years_size(year_ids=[year.pk])
    now = timezone.now()
    if incidents > settings.ANALYTICS_AT_ONCE:
        parts = [year_found(year=year, topic=topic, given=given, incidents=incidents, now=now) for topic in TOPICS]
        if jobs := [part for part in parts if isinstance(part, AnalyticsJob)]:
            return jobs
        found, *others = [part for part in parts if isinstance(part, Analytics)]
        for other in others:
            found.tables |= other.tables
    else:
        found = year_analytics(year=year, given=given, now=now)
    price = year.contract.price_per_gpu_hour
    return {
        "as_of": found.scope.now,
        "currency": year.contract.currency,
        "price_per_gpu_hour": None if price is None else str(price),
        "tables": {code: table.records() for code, table in found.tables.items()},
    }
