"""What can go wrong with a call to the API server, by what can be done about it."""

from __future__ import annotations


class ApiError(Exception):
    """A call failed. `status` is the HTTP code, 0 when there was no answer."""

    def __init__(self, status: int, reason: str, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}" if status else f"{reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_seconds = retry_after_seconds


class Unreachable(ApiError):
    """No answer: refused, reset, timed out. Trying again later is all there is to do."""


class Unauthorized(ApiError):
    """401: the credential has expired or is wrong."""


class Rejected(ApiError):
    """400, 403 or 422: the API server or an admission rule said no, and will say it again until something changes."""


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """409: the object changed since it was read, or exists already."""


class Throttled(ApiError):
    """429: come back after `retry_after_seconds`."""


def error_of(status: int, reason: str, message: str, retry_after_seconds: float | None = None) -> ApiError:
    """The narrowest error for an HTTP status."""
    kinds: dict[int, type[ApiError]] = {
        400: Rejected,
        401: Unauthorized,
        403: Rejected,
        404: NotFound,
        409: Conflict,
        422: Rejected,
        429: Throttled,
    }
    return kinds.get(status, ApiError)(status, reason, message, retry_after_seconds)
