"""The service's two doors for agents, over HTTP. Nothing here decides what to do with a refusal."""

from __future__ import annotations

import email.utils
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx

LONGEST_RETRY_AFTER_S = 3600.0
"""A `Retry-After` beyond this is taken for a mistake, and we ask again after this time."""


@dataclass(frozen=True, slots=True)
class ReportResult:
    """The service's answer for one report."""

    status: str
    reason: str | None


class Refusal(Exception):
    """The service took nothing. `str()` is one sentence that says why and what to do.

    `key_refused`: 401 or 403. `content_refused`: the service works but will not have this request, so a
    smaller one may pass. `retry_after_s`: the wait it asks for.
    """

    def __init__(
        self,
        sentence: str,
        *,
        retry_after_s: float | None = None,
        key_refused: bool = False,
        content_refused: bool = False,
    ) -> None:
        super().__init__(sentence)
        self.retry_after_s = retry_after_s
        self.key_refused = key_refused
        self.content_refused = content_refused


class ServiceClient:
    """Posts reports and heartbeats to the service at `url` (its root, without `/api/v1`)."""

    def __init__(self, *, url: str, key: str | None, timeout_s: float = 10.0) -> None:
        self.url = url.rstrip("/")
        headers = {"User-Agent": "yoco-agent", "Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self._http = httpx.Client(headers=headers, timeout=httpx.Timeout(timeout_s, connect=5.0))

    def reports_post(self, bodies: Sequence[bytes]) -> dict[str, ReportResult]:
        """Post the reports as they are; the results by report id. Raises Refusal."""
        answer = self._post("/api/v1/reports", b"[" + b",".join(bodies) + b"]")
        results = answer.get("results") if isinstance(answer, dict) else None
        if not isinstance(results, list):
            raise Refusal(f"{self.url} answered without results; is it a YOCO service?")
        return {
            str(item["id"]): ReportResult(status=str(item.get("status")), reason=item.get("reason"))
            for item in results
            if isinstance(item, dict) and "id" in item
        }

    def heartbeat_post(self, heartbeat: dict[str, Any]) -> list[tuple[int, int]]:
        """Post a heartbeat; the ranges of sequence numbers that the service lacks. Raises Refusal."""
        answer = self._post("/api/v1/heartbeats", json.dumps(heartbeat).encode())
        if not isinstance(answer, dict):
            raise Refusal(f"{self.url} answered a heartbeat with no object; is it a YOCO service?")
        try:
            return [(int(first), int(last)) for first, last in answer.get("missing") or []]
        except (TypeError, ValueError):
            raise Refusal(f"{self.url} answered a heartbeat with ranges that are none") from None

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _post(self, path: str, body: bytes) -> Any:
        headers = {}
        if len(body) > 1024:
            body, headers = gzip.compress(body, compresslevel=6, mtime=0), {"Content-Encoding": "gzip"}
        try:
            response = self._http.post(self.url + path, content=body, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            cause = str(error) or type(error).__name__
            raise Refusal(
                f"The service {self.url} cannot be reached ({cause}); reports are kept and sent later."
            ) from None
        if response.is_success or (response.status_code == 422 and "results" in _json(response, {})):
            answer = _json(response, None)
            if answer is None:
                raise Refusal(f"{self.url} answered {response.status_code} without JSON; is it a YOCO service?")
            return answer
        raise self._refusal(response)

    def _refusal(self, response: httpx.Response) -> Refusal:
        code = response.status_code
        problem = _json(response, {})
        said = problem.get("detail") or problem.get("title") or response.reason_phrase
        if code in (401, 403):
            return Refusal(
                f"The service {self.url} refuses the agent key ({code}: {said}); reports are kept. "
                "Set a valid key with the scope `ingest`.",
                key_refused=True,
            )
        return Refusal(
            f"The service {self.url} did not take it ({code}: {said}); reports are kept and sent later.",
            retry_after_s=_retry_after_s(response.headers.get("Retry-After")),
            content_refused=code in (400, 413, 422),
        )


def _json(response: httpx.Response, default: Any) -> Any:
    try:
        value = response.json()
    except ValueError:
        return default
    return value if default is None or isinstance(value, type(default)) else default


def _retry_after_s(value: str | None) -> float | None:
    """Seconds of a `Retry-After` header, a number or an HTTP date (RFC 9110, 10.2.3).

    `None` when it is neither.
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (email.utils.parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError):
            return None
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER_S)
