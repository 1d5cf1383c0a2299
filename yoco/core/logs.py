"""What the processes write down: one event a line, as JSON or as text, with the request that it belongs to.

Lines of any logger of the standard library take this form. Whatever is bound to the context (`request_id`, `user_id`,
`key`, `organisation_id`, `task_id`) is in every line written meanwhile, and goes with the tasks that are queued.
Addresses with a secret in them, such as that of a shared statement, are written as their route; and as a last line of
defence anything that looks like one of our secrets is blotted out of the finished line.
"""

import re
from collections.abc import Iterable
from typing import Any

import structlog
from django.conf import settings
from django.http import HttpRequest
from structlog.contextvars import get_contextvars, merge_contextvars
from structlog.typing import EventDict, Processor, WrappedLogger

BLOT = "[secret]"
SHAPES = (
    r"yoco_(?:ingest|read)_[0-9A-Za-z]+_[0-9A-Za-z]+",  # an agent's key
    r"whsec_[0-9A-Za-z+/=]+",  # a webhook's secret
    r"(?<=://)[^/\s@\"']*:[^/\s@\"']+(?=@)",  # the user and the password of an address
    r"(?<=/)[\w-]{43}(?![\w-])",  # the token of a link (links.link_token)
)
STATIC = "/static/"  # the route of every static file
SHORTEST_SECRET = 8  # a shorter one would blot out words


class Secrets:
    """Blots secrets out of text: what has the shape of one, and the values that it is given."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        values = sorted({re.escape(value) for value in known if len(value) >= SHORTEST_SECRET}, key=len, reverse=True)
        self._pattern = re.compile("|".join((*values, *SHAPES)))

    def blot(self, text: str) -> str:
        return self._pattern.sub(BLOT, text)

    def __call__(self, logger: WrappedLogger, method: str, line: str) -> str:
        """As the last processor of a log line."""
        return self.blot(line)


def logging_config(*, form: str, level: str, stream: str, secrets: Iterable[str] = ()) -> dict[str, Any]:
    """`LOGGING` for Django, Celery and gunicorn alike, and structlog set to the same. `form` is "json" or "text"."""
    before: list[Processor] = [
        merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *before,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    write: Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    )
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": [_route_for_path, *before],
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    structlog.processors.format_exc_info,
                    write,
                    Secrets(secrets),
                ],
            }
        },
        "handlers": {"line": {"class": "logging.StreamHandler", "formatter": "line", "stream": f"ext://sys.{stream}"}},
        "root": {"handlers": ["line"], "level": level},
        "loggers": {
            "django": {"handlers": [], "level": "INFO", "propagate": True},
            # Every request has a line of ours (middleware.RequestMiddleware), which says its route and not its path.
            "django.request": {"level": "ERROR"},
            "django.server": {"handlers": [], "level": "ERROR", "propagate": True},
            "gunicorn.error": {"propagate": True},
            "httpx": {"level": "WARNING"},  # it writes addresses whole
            "weasyprint": {"level": "WARNING"},  # it tells each step of each page
            "fontTools": {"level": "WARNING"},
        },
    }


def _route_for_path(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Django writes the path of a request that failed; the route says where as well, and holds no token."""
    request = getattr(event["_record"], "request", None)
    if isinstance(request, HttpRequest):
        for path in (request.path, request.path.encode("unicode_escape").decode()):
            if event["event"].endswith(path):
                event["event"] = event["event"].removesuffix(path) + route_of(request)
                break
    return event


def route_of(request: HttpRequest) -> str:
    """The pattern that the path matched, without what it held; empty if none did."""
    if request.resolver_match is not None:
        return f"/{request.resolver_match.route}"
    return STATIC if request.path.startswith(f"/{settings.STATIC_URL.lstrip('/')}") else ""


def request_id() -> str | None:
    """The number of the request that is being answered, or that queued the task that runs."""
    return get_contextvars().get("request_id")
