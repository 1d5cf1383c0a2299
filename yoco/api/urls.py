"""Routes of the api face, all under /api/v1/."""

from django.urls import include, path
from rest_framework.routers import SimpleRouter

from yoco.api.docs import DocsView, SchemaView
from yoco.api.ingest import HeartbeatsView, ReportsView
from yoco.api.nothing import NothingView
from yoco.api.read import ContractViewSet, ContractYearViewSet, CreditViewSet, IncidentViewSet, StatementViewSet
from yoco.api.scenarios import ScenariosView

router = SimpleRouter(trailing_slash=False, use_regex_path=False)
router.register("contracts", ContractViewSet, basename="api-contract")
router.register("contract-years", ContractYearViewSet, basename="api-contract-year")
router.register("incidents", IncidentViewSet, basename="api-incident")
router.register("statements", StatementViewSet, basename="api-statement")
router.register("credits", CreditViewSet, basename="api-credit")

urlpatterns = [
    path("reports", ReportsView.as_view(), name="api-reports"),
    path("heartbeats", HeartbeatsView.as_view(), name="api-heartbeats"),
    path("scenarios", ScenariosView.as_view(), name="api-scenarios"),
    path("schema", SchemaView.as_view(), name="api-schema"),
    path("docs", DocsView.as_view(), name="api-docs"),
    path("", include(router.urls)),
    path("<path:address>", NothingView.as_view()),
]
