"""Errors of the HTTP API: a status, OpenAI's error object, and whether asking again can help.

Overload and drain answers carry `Retry-After` (seconds), `retry-after-ms` and `x-should-retry`, which OpenAI's clients
obey in that order of precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from http import HTTPStatus


@dataclass
class ApiError(Exception):
    """An answer that is an error. `param` names the request's field that caused it, where one did."""

    status: HTTPStatus
    message: str
    code: str
    param: str | None = None
    retry_after_seconds: float | None = None
    """None where the client's own back-off is right."""
    should_retry: bool | None = None
    """Sent as `x-should-retry`; None says nothing."""
    type: str = field(init=False)

    def __post_init__(self) -> None:
        super().__init__(self.message)
        self.type = "invalid_request_error" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"

    def body(self) -> dict[str, object]:
        """OpenAI's error object."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error}

    def headers(self) -> dict[str, str]:
        """Headers about asking again."""
        headers: dict[str, str] = {}
        if self.retry_after_seconds is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_seconds)))
            headers["retry-after-ms"] = str(max(1, math.ceil(self.retry_after_seconds * 1000)))
        if self.should_retry is not None:
            headers["x-should-retry"] = "true" if self.should_retry else "false"
        return headers


def bad_request(message: str, param: str | None, code: str = "invalid_value") -> ApiError:
    """400: the request itself cannot work."""
    return ApiError(HTTPStatus.BAD_REQUEST, message, code, param, should_retry=False)


def unavailable(message: str, code: str, retry_after_seconds: float) -> ApiError:
    """503: not now, or not here; ask again later or elsewhere."""
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE, message, code, retry_after_seconds=retry_after_seconds, should_retry=True
    )


def engine_gone(message: str) -> ApiError:
    """503: the engine died under a request; the pod is about to be replaced."""
    return unavailable(message, "engine_dead", retry_after_seconds=5)
