"""Errors that Django answers itself, before or behind the views: problem+json under /api/, pages everywhere else."""

import logging
import sys
from http import HTTPStatus

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.views import defaults

from yoco.core.logs import request_id, route_of
from yoco.core.problem import problem_json

log = logging.getLogger(__name__)
NOTHING_HERE = "There is no such address. The reference of the API is /api/v1/docs."


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """400: a host that is not served, a malformed header."""
    if not _is_api(request):
        return defaults.bad_request(request, exception)
    return problem_json(HTTPStatus.BAD_REQUEST, "The request is malformed.", code="bad_request")


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    """403 outside of a view."""
    if not _is_api(request):
        return defaults.permission_denied(request, exception)
    return problem_json(HTTPStatus.FORBIDDEN, "You do not have permission to do this.", code="permission_denied")


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """404: an address that no view serves."""
    if not _is_api(request):
        return defaults.page_not_found(request, exception)
    return problem_json(HTTPStatus.NOT_FOUND, NOTHING_HERE, code="not_found")


def too_many_requests(request: HttpRequest) -> HttpResponse:
    """429: beyond a limit on sign-in, on account pages or on invitations. The API's own limit answers by itself."""
    if _is_api(request):
        detail = "Too many requests. Send them again later; nothing was changed."
        answer: HttpResponse = problem_json(HTTPStatus.TOO_MANY_REQUESTS, detail, code="throttled")
    else:
        answer = render(request, "429.html", status=HTTPStatus.TOO_MANY_REQUESTS)
    answer["Retry-After"] = "300"
    return answer


def server_error(request: HttpRequest) -> HttpResponse:
    """500, with the number under which the fault is in the log; 503 where only the database does not answer."""
    away = isinstance(sys.exc_info()[1], OperationalError | InterfaceError)
    if not _is_api(request):
        if not away:
            return defaults.server_error(request)
        page = render_to_string("500.html", {"status": HTTPStatus.SERVICE_UNAVAILABLE.value})
        return HttpResponse(page, status=HTTPStatus.SERVICE_UNAVAILABLE, headers={"Retry-After": "5"})
    if away:
        detail = "The database does not answer. Send the request again later; nothing is stored twice."
        return problem_json(HTTPStatus.SERVICE_UNAVAILABLE, detail, code="unavailable", headers={"Retry-After": "5"})
    number = request_id() or ""
    log.error("Request %s failed: %s %s", number, request.method, route_of(request), exc_info=True)
    return problem_json(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "Something failed on our side; the fault is written down under this request's number. "
        "Send the request again later: whatever was stored is not stored twice.",
        code="internal",
        request_id=number,
    )


def _is_api(request: HttpRequest) -> bool:
    return request.path.startswith("/api/")
