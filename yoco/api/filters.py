"""Query parameters of the lists."""

import datetime
from typing import Any

import django_filters as filters
from django_filters.fields import IsoDateTimeField

from yoco.contracts.models import Contract, ContractYear, YearState
from yoco.credits.models import Credit, CreditState
from yoco.guarantee.models import Outcome, Statement, Verdict
from yoco.incidents.models import Incident, IncidentState, Kind, Origin, Resolution, Signal


class InstantField(IsoDateTimeField):
    """A time that exists in UTC too; the first and last hours of the calendar do not in every zone."""

    def strptime(self, value: Any, format: str) -> datetime.datetime:
        try:
            parsed: datetime.datetime = super().strptime(value, format)
            return parsed.astimezone(datetime.UTC)
        except OverflowError as error:
            raise ValueError from error


class InstantFilter(filters.IsoDateTimeFilter):
    field_class = InstantField


class ContractFilter(filters.FilterSet):
    number = filters.CharFilter()

    class Meta:
        model = Contract
        fields = ["number"]


class ContractYearFilter(filters.FilterSet):
    contract = filters.UUIDFilter(field_name="contract_id")
    state = filters.ChoiceFilter(choices=YearState.choices)

    class Meta:
        model = ContractYear
        fields = ["contract", "state"]


class IncidentFilter(filters.FilterSet):
    contract = filters.UUIDFilter(field_name="contract_id")
    year = filters.UUIDFilter(field_name="placement__year_id")
    outcome = filters.ChoiceFilter(field_name="placement__outcome", choices=Outcome.choices)
    run_id = filters.CharFilter(field_name="run__run_id")
    root_event = filters.UUIDFilter(field_name="root_event_id")
    kind = filters.ChoiceFilter(choices=Kind.choices)
    signal = filters.ChoiceFilter(choices=Signal.choices)
    xid = filters.NumberFilter(min_value=0, max_value=2**31 - 1)
    node = filters.CharFilter()
    state = filters.ChoiceFilter(choices=IncidentState.choices)
    origin = filters.ChoiceFilter(choices=Origin.choices)
    resolution = filters.ChoiceFilter(choices=Resolution.choices)
    started_from = InstantFilter(field_name="started_at", lookup_expr="gte")
    started_before = InstantFilter(field_name="started_at", lookup_expr="lt")

    class Meta:
        model = Incident
        fields: list[str] = []


class StatementFilter(filters.FilterSet):
    contract = filters.UUIDFilter(field_name="year__contract_id")
    year = filters.UUIDFilter(field_name="year_id")
    verdict = filters.ChoiceFilter(choices=Verdict.choices)

    class Meta:
        model = Statement
        fields: list[str] = []


class CreditFilter(filters.FilterSet):
    contract = filters.UUIDFilter(field_name="year__contract_id")
    year = filters.UUIDFilter(field_name="year_id")
    state = filters.ChoiceFilter(choices=CreditState.choices)

    class Meta:
        model = Credit
        fields: list[str] = []
