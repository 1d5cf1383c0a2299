"""The two doors for agents: reports and heartbeats."""

from collections import defaultdict
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import structlog
from django.conf import settings
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from yoco.accounts.models import AgentKey, Scope
from yoco.api.authentication import KeyAuthentication
from yoco.api.body import BodyRefused, body_read
from yoco.api.schema import EXAMPLE_REPORT, HEARTBEAT, MISSING, REPORTS, RESULTS, problems
from yoco.contracts.models import Contract
from yoco.core.counters import heartbeat_count, reports_count
from yoco.core.problem import problem
from yoco.guarantee.intake import heartbeat_accept
from yoco.guarantee.services import reports_accept
from yoco.incidents.payload import Invalid, Unreadable, json_kind, json_read
from yoco.incidents.services import ReportResult

log = structlog.get_logger(__name__)
IDS_A_LINE = 100  # collectors of logs cut lines of more than about 16 KiB


class IngestKey(BasePermission):
    """A key of scope `ingest`, which belongs to one contract."""

    message = "This key may only read. Use a key with the scope “ingest”."

    def has_permission(self, request: Request, view: APIView) -> bool:
        return isinstance(request.user, AgentKey) and request.user.scope == Scope.INGEST


def _key(request: Request) -> tuple[AgentKey, Contract]:
    key = request.user
    assert isinstance(key, AgentKey)  # IngestKey let nothing else pass,
    assert key.contract is not None  # and the database lets no ingest key be without its contract.
    return key, key.contract


def _result(result: ReportResult) -> dict[str, Any]:
    answer: dict[str, Any] = {"id": result.id, "status": result.status}
    if result.reason is not None:
        answer["reason"] = result.reason
    if result.path is not None:
        answer["path"] = result.path
    return answer


def _unreadable(refusal: Invalid) -> BodyRefused:
    return BodyRefused(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid", refusal.reason)


def _log_taken(reports: Sequence[Any], results: Sequence[ReportResult]) -> None:
    """Which reports came, by what became of them, and of which runs. Of one that is not valid nothing is repeated."""
    for first in range(0, len(results), IDS_A_LINE):
        ids: dict[str, list[str]] = defaultdict(list)
        runs, invalid = set(), 0
        for report, result in zip(reports[first : first + IDS_A_LINE], results[first:], strict=False):
            if result.status == "invalid":
                invalid += 1
            else:
                ids[result.status].append(str(result.id))
                runs.add(report["workload"]["run_id"])
        log.info("reports taken", **ids, invalid=invalid, runs=sorted(runs))


class ReportsView(APIView):
    """Takes one report or a list of up to 500."""

    authentication_classes = [KeyAuthentication]
    permission_classes = [IngestKey]

    @extend_schema(
        operation_id="reports_post",
        request=REPORTS,
        responses={200: RESULTS, **problems(400, 401, 403, 411, 413, 415, 422, 429, 503)},
        examples=[EXAMPLE_REPORT],
        tags=["agents"],
    )
    def post(self, request: Request) -> Response:
        """Takes one report or a list of up to 500, gzip welcome. A 200 is durable; one result for each report."""
        key, contract = _key(request)
        try:
            value = json_read(body_read(request))
        except Invalid as refusal:
            raise _unreadable(refusal) from None
        reports = value if isinstance(value, list) else [value]
        if not isinstance(value, dict | list | Unreadable) or not reports:
            raise BodyRefused(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "invalid",
                f"Expected a report or a list of reports, got {'an empty list' if value == [] else json_kind(value)}.",
            )
        if len(reports) > settings.INGEST_MAX_REPORTS:
            raise BodyRefused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "too_many",
                f"A request may have {settings.INGEST_MAX_REPORTS} reports, this one has {len(reports)}.",
            )
        outcome = reports_accept(contract=contract, key=key, reports=reports, received_at=timezone.now())
        reports_count(result.status for result in outcome.results)
        _log_taken(reports, outcome.results)
        results = [_result(result) for result in outcome.results]
        if all(result.status == "invalid" for result in outcome.results):
            return problem(
                HTTPStatus.UNPROCESSABLE_ENTITY, "No report of this request is valid.", code="invalid", results=results
            )
        return Response({"results": results})


class HeartbeatsView(APIView):
    """Takes a sign of life and answers which report numbers never arrived."""

    authentication_classes = [KeyAuthentication]
    permission_classes = [IngestKey]

    @extend_schema(
        operation_id="heartbeats_post",
        request=HEARTBEAT,
        responses={200: MISSING, **problems(400, 401, 403, 411, 413, 415, 422, 429, 503)},
        tags=["agents"],
    )
    def post(self, request: Request) -> Response:
        """Takes a sign of life and answers which report numbers never arrived."""
        _, contract = _key(request)
        try:
            missing = heartbeat_accept(
                contract=contract, heartbeat=json_read(body_read(request)), received_at=timezone.now()
            )
        except Invalid as refusal:
            heartbeat_count(taken=False)
            return problem(
                HTTPStatus.UNPROCESSABLE_ENTITY, refusal.reason, code="invalid", errors={refusal.path: refusal.reason}
            )
        heartbeat_count(taken=True)
        return Response({"missing": missing})
