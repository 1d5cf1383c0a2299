"""What drf-spectacular cannot know: keys, the agents' payloads, and errors as problem+json."""

from typing import Any

import msgspec
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.utils import OpenApiExample, OpenApiResponse, inline_serializer
from rest_framework import serializers

from yoco.incidents.payload import Heartbeat, Report

REF = "#/components/schemas/{name}"


class KeyScheme(OpenApiAuthenticationExtension):
    target_class = "yoco.api.authentication.KeyAuthentication"
    name = "key"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "yoco_<kind>_<lookup>_<secret><checksum>"}


def payload_schemas(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Postprocessing hook: the schemas of reports and heartbeats come from the types that check them."""
    _, components = msgspec.json.schema_components([Report, Heartbeat], ref_template=REF)
    result["components"]["schemas"].update(components)
    return result


def read_problems(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Postprocessing hook: the errors that every operation for reading shares."""
    content = {"application/problem+json": {"schema": {"$ref": REF.format(name="Problem")}}}
    for path in result["paths"].values():
        for method, operation in path.items():
            if method == "get":
                for status in (400, 401, 403, 404, 409, 429, 503):
                    answer = {"description": _PROBLEMS[status], "content": content}
                    operation["responses"].setdefault(str(status), answer)
    return result


REPORTS = {
    "application/json": {
        "oneOf": [
            {"$ref": REF.format(name="Report")},
            {"type": "array", "items": {"$ref": REF.format(name="Report")}, "minItems": 1, "maxItems": 500},
        ]
    }
}
HEARTBEAT = {"application/json": {"$ref": REF.format(name="Heartbeat")}}


class ResultSerializer(serializers.Serializer[Any]):
    """The answer for one report, in the order of the request."""

    id = serializers.CharField(allow_null=True)
    status = serializers.ChoiceField(["created", "duplicate", "conflict", "invalid"])
    reason = serializers.CharField(required=False)
    path = serializers.CharField(required=False, help_text="JSON path of what is invalid.")


RESULTS = inline_serializer("Results", {"results": ResultSerializer(many=True)})
MISSING = inline_serializer(
    "Missing",
    {
        "missing": serializers.ListField(
            child=serializers.ListField(child=serializers.IntegerField(), min_length=2, max_length=2),
            help_text="Ranges [first, last] of report numbers to send again.",
        )
    },
)


PROBLEM = inline_serializer(
    "Problem",
    {
        "type": serializers.CharField(help_text="urn:yoco:problem:<code>; stable."),
        "title": serializers.CharField(),
        "status": serializers.IntegerField(),
        "detail": serializers.CharField(help_text="What was wrong and what to do."),
        "errors": serializers.DictField(required=False, help_text="What was wrong with which parameter or path."),
        "results": ResultSerializer(many=True, required=False),
    },
)
_PROBLEMS = {
    400: "The request is malformed.",
    401: "The key is missing, unknown, expired or revoked.",
    403: "The key has another scope.",
    404: "There is no such object, or it is not yours to see.",
    409: "The request is ambiguous.",
    411: "The body has no Content-Length.",
    413: "The body is too large before or after inflation, or has too many reports.",
    415: "The body is neither JSON nor gzip of it.",
    422: "Nothing in the request is valid.",
    429: "Too many requests with this key; wait for `Retry-After` seconds.",
    503: "The database does not answer; send the request again after `Retry-After` seconds.",
}


def problems(*statuses: int) -> dict[Any, Any]:
    """The error answers of an operation."""
    return {
        (status, "application/problem+json"): OpenApiResponse(PROBLEM, description=_PROBLEMS[status])
        for status in statuses
    }


EXAMPLE_REPORT = OpenApiExample(
    "A live migration without loss",
    request_only=True,
    value={
        "schema_version": "1.0",
        "id": "0192f3f4-8d1e-7c3a-9b63-1f0e7a2b9c01",
        "agent_id": "coordinator-1",
        "boot_id": "0192f3f0-0000-7000-8000-000000000001",
        "seq": 2,
        "type": "incident.resolved",
        "incident_id": "0192f3f4-8d1e-7c3a-9b63-1f0e7a2b9c00",
        "sent_at": "2026-11-02T09:03:20Z",
        "workload": {"run_id": "pretraining-7", "gpus": 2048, "gpus_per_node": 8, "strategy": "hsdp"},
        "kind": "unplanned",
        "trigger": {"signal": "xid", "xid": 79, "detail": {}},
        "where": {"node": "node-17", "rank": 131},
        "phases": {"started_at": "2026-11-02T09:00:00Z", "resumed_at": "2026-11-02T09:01:55Z"},
        "progress": {"last_committed_step": 1200, "first_step_after": 1201, "checkpoint_loaded": False},
        "state": {"source": "replica", "digest_sent": "ab12", "digest_received": "ab12"},
        "resolution": "live_migration",
    },
)
