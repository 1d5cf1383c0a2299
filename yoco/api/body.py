"""Request bodies of the ingest: limited before and after inflation."""

import zlib
from http import HTTPStatus

from django.conf import settings
from rest_framework.request import Request

from yoco.core.problem import DomainError


class BodyRefused(DomainError):
    """The body is too large, not inflatable or of an unknown type."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message, code=code)
        self.status = status


def _mebibytes(size: int) -> str:
    return f"{size / 1024 / 1024:g} MiB"


def body_read(request: Request) -> bytes:
    """The inflated body. Raises BodyRefused: 400, 411, 413 or 415."""
    if "chunked" in request.META.get("HTTP_TRANSFER_ENCODING", ""):
        raise BodyRefused(HTTPStatus.LENGTH_REQUIRED, "length_required", "Send the body with its Content-Length.")
    if (request.content_type or "application/json").partition(";")[0].strip().lower() != "application/json":
        raise BodyRefused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", "Send application/json.")
    length = request.META.get("CONTENT_LENGTH") or "0"
    if not length.isdigit() or int(length) > settings.INGEST_MAX_BODY:
        raise BodyRefused(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "too_large",
            f"A request may have {_mebibytes(settings.INGEST_MAX_BODY)} as sent. Compress it with gzip or send less.",
        )
    body: bytes = request.body
    match request.headers.get("Content-Encoding", "identity").strip().lower():
        case "identity" | "":
            return body
        case "gzip":
            return _inflate(body, settings.INGEST_MAX_INFLATED)
    raise BodyRefused(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", "The only Content-Encoding accepted is gzip."
    )


def _inflate(body: bytes, limit: int) -> bytes:
    inflater = zlib.decompressobj(wbits=31)
    try:
        inflated = inflater.decompress(body, limit + 1)
    except zlib.error:
        raise BodyRefused(HTTPStatus.BAD_REQUEST, "not_gzip", "The body says gzip but is not.") from None
    if len(inflated) > limit:
        raise BodyRefused(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "too_large",
            f"A request may have {_mebibytes(limit)} after inflation. Send fewer reports at once.",
        )
    if not inflater.eof or inflater.unused_data:
        raise BodyRefused(HTTPStatus.BAD_REQUEST, "not_gzip", "The gzip body is cut short or has something after it.")
    return inflated
