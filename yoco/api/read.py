"""Reading: contracts, contract years, incidents, statements and credits that the asker may see."""

import uuid
from http import HTTPStatus
from typing import Any, ClassVar

from django.db.models import Model, QuerySet
from django.http import Http404
from drf_spectacular.utils import OpenApiParameter, OpenApiTypes, extend_schema
from rest_framework.decorators import action
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ReadOnlyModelViewSet

from yoco.accounts.access import access, visible
from yoco.accounts.models import AgentKey, Scope
from yoco.api import filters, serializers
from yoco.api.analytics import AnalyticsQuestion, AnalyticsSerializer, AnalyticsWaitSerializer, analytics_told
from yoco.api.schema import problems
from yoco.contracts.models import Contract, ContractYear
from yoco.core.problem import DomainError
from yoco.credits.models import Credit
from yoco.credits.selectors import credit_balances
from yoco.guarantee.models import Statement
from yoco.guarantee.selectors import year_export, year_report
from yoco.incidents.models import Incident


class Reader(BasePermission):
    """A signed-in person, or a key of scope `read`."""

    message = "This key may only report. Use a key with the scope “read”."

    def has_permission(self, request: Request, view: APIView) -> bool:
        user = request.user
        return bool(user and user.is_authenticated) and not (isinstance(user, AgentKey) and user.scope != Scope.READ)


class TenantViewSet(ReadOnlyModelViewSet[Any]):
    """Lists and shows what the asker may see; another tenant's object answers 404."""

    permission_classes = [Reader]
    organisation: ClassVar[str]
    detail_serializer_class: ClassVar[type[Any] | None] = None
    lookup_value_converter = "uuid"

    def visible(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return visible(queryset, principal=self.request.user, organisation=self.organisation)  # type: ignore[arg-type]

    def get_queryset(self) -> QuerySet[Any]:
        if getattr(self, "swagger_fake_view", False):
            return super().get_queryset().none()
        return self.visible(super().get_queryset())

    def get_object(self) -> Model:
        row: Model = access(
            super().get_queryset(),
            principal=self.request.user,  # type: ignore[arg-type]
            organisation=self.organisation,
            pk=self.kwargs["pk"],
        )
        return row

    def get_serializer_class(self) -> type[Any]:
        if self.action == "retrieve" and self.detail_serializer_class is not None:
            return self.detail_serializer_class
        return super().get_serializer_class()


class ContractViewSet(TenantViewSet):
    queryset = Contract.objects.select_related("organisation").prefetch_related("terms")
    organisation = "organisation"
    serializer_class = serializers.ContractSerializer
    filterset_class = filters.ContractFilter
    ordering = "number"


class ContractYearViewSet(TenantViewSet):
    queryset = ContractYear.objects.select_related("contract")
    organisation = "contract__organisation"
    serializer_class = serializers.ContractYearSerializer
    detail_serializer_class = serializers.ContractYearDetailSerializer
    filterset_class = filters.ContractYearFilter
    ordering = ("-starts_at", "id")

    @extend_schema(filters=False)
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """The contract year with its report: provisional while it is open, then that of its latest statement."""
        year = self.get_object()
        context = {**self.get_serializer_context(), "report": year_report(year=year)}  # type: ignore[arg-type]
        return Response(self.get_serializer_class()(year, context=context).data)

    @extend_schema(responses=OpenApiTypes.OBJECT, filters=False)
    @action(detail=True, pagination_class=None, filterset_class=None)
    def export(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Everything needed to recompute the share and the verdict; `tools/recompute.py` does."""
        return Response(year_export(year=self.get_object()))  # type: ignore[arg-type]

    @extend_schema(
        parameters=[AnalyticsQuestion],
        responses={200: AnalyticsSerializer, 202: AnalyticsWaitSerializer, **problems(400)},
        filters=False,
    )
    @action(detail=True, pagination_class=None, filterset_class=None)
    def analytics(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Failure rates, wasted GPU-time, goodput and recovery: the tables that the pages draw."""
        year = self.get_object()
        question = AnalyticsQuestion(data=request.query_params)
        question.is_valid(raise_exception=True)
        told = analytics_told(year, question.validated_data)  # type: ignore[arg-type]
        if isinstance(told, list):
            waiting = AnalyticsWaitSerializer({"jobs": told}).data
            return Response(waiting, status=HTTPStatus.ACCEPTED, headers={"Retry-After": "5"})
        return Response(AnalyticsSerializer(told).data)


AMBIGUOUS = "Incidents of several contracts have this id. Name the contract: ?contract=…"


class IncidentViewSet(TenantViewSet):
    queryset = Incident.objects.select_related("run", "root_event", "placement", "explained_by")
    organisation = "contract__organisation"
    serializer_class = serializers.IncidentSerializer
    detail_serializer_class = serializers.IncidentDetailSerializer
    filterset_class = filters.IncidentFilter
    ordering = ("-started_at", "-id")

    def get_object(self) -> Incident:
        """Agents choose the id, so it is unique within a contract only."""
        found = self.get_queryset().filter(public_id=self.kwargs["pk"])
        if contract := self.request.query_params.get("contract"):
            try:
                found = found.filter(contract_id=uuid.UUID(contract))
            except ValueError:
                raise Http404 from None
        rows = list(found[:2])
        if not rows:
            raise Http404
        if len(rows) > 1:
            raise Ambiguous(AMBIGUOUS, code="ambiguous")
        incident: Incident = rows[0]
        return incident

    @extend_schema(parameters=[OpenApiParameter("contract", OpenApiTypes.UUID)], filters=False)
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """One incident with every report about it, as received."""
        return super().retrieve(request, *args, **kwargs)


class Ambiguous(DomainError):
    status = HTTPStatus.CONFLICT


class StatementViewSet(TenantViewSet):
    queryset = Statement.objects.select_related("year", "terms")
    organisation = "year__contract__organisation"
    serializer_class = serializers.StatementSerializer
    detail_serializer_class = serializers.StatementDetailSerializer
    filterset_class = filters.StatementFilter
    ordering = ("-created_at", "-id")

    def get_queryset(self) -> QuerySet[Any]:
        rows = super().get_queryset()
        return rows.defer("canonical", "summary") if self.action == "list" else rows


class CreditViewSet(TenantViewSet):
    queryset = Credit.objects.select_related("year")
    organisation = "year__contract__organisation"
    serializer_class = serializers.CreditSerializer
    filterset_class = filters.CreditFilter
    ordering = ("-proposed_at", "-id")

    def get_serializer(self, *args: Any, **kwargs: Any) -> Any:
        """Reads the balances of all rows at once."""
        if args:
            rows = args[0] if kwargs.get("many") else [args[0]]
            kwargs["context"] = {**self.get_serializer_context(), "balances": credit_balances(credits=rows)}
        return super().get_serializer(*args, **kwargs)
