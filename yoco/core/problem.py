"""Errors of the API as RFC 9457 problem details (application/problem+json)."""

from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError
from django.http import Http404, JsonResponse
from rest_framework import exceptions
from rest_framework.response import Response


class DomainError(Exception):
    """A rule refused an action. The message is a sentence for the person who asked; `code` is stable for machines."""

    status = HTTPStatus.CONFLICT

    def __init__(self, message: str, *, code: str = "refused") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


def problem_content(status: int, detail: str, *, code: str, **extra: Any) -> dict[str, Any]:
    """The members of a problem. `code` becomes the type URI `urn:yoco:problem:<code>`; extra members are kept."""
    return {
        "type": f"urn:yoco:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        **extra,
    }


def problem(status: int, detail: str, *, code: str, headers: dict[str, str] | None = None, **extra: Any) -> Response:
    """A problem+json response of a view; the members as `problem_content`."""
    body = problem_content(status, detail, code=code, **extra)
    return Response(body, status=status, headers=headers, content_type="application/problem+json")


def problem_json(
    status: int, detail: str, *, code: str, headers: dict[str, str] | None = None, **extra: Any
) -> JsonResponse:
    """The same outside of DRF's views."""
    content = problem_content(status, detail, code=code, **extra)
    return JsonResponse(content, status=status, headers=headers, content_type="application/problem+json")


def problem_response(exc: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's exception handler: every error it knows becomes problem+json; anything else is a 500 (api/errors.py)."""
    if isinstance(exc, DomainError):
        return problem(exc.status, exc.message, code=exc.code)
    if isinstance(exc, OperationalError | InterfaceError):
        # Whether the transaction was committed may be unknown; sending again is safe wherever a 503 can be answered.
        return problem(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "The database does not answer. Send the request again later; nothing is stored twice.",
            code="unavailable",
            headers={"Retry-After": "5"},
        )
    if isinstance(exc, Http404):
        exc = exceptions.NotFound("There is no such object, or it is not yours to see.")
    elif isinstance(exc, PermissionDenied):
        exc = exceptions.PermissionDenied()
    if not isinstance(exc, exceptions.APIException):
        return None
    headers = {}
    if auth_header := getattr(exc, "auth_header", None):
        headers["WWW-Authenticate"] = auth_header
    if (wait := getattr(exc, "wait", None)) is not None:
        headers["Retry-After"] = str(max(1, round(wait)))
    if isinstance(exc, exceptions.ValidationError):
        return problem(exc.status_code, "Some fields are not valid.", code="invalid", errors=exc.detail)
    codes = exc.get_codes()
    return problem(
        exc.status_code,
        str(exc.detail),
        code=codes if isinstance(codes, str) else "invalid",
        headers=headers or None,
    )
