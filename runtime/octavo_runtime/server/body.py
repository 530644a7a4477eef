"""Reading a request's body: bounded in bytes and in time, and JSON or a clear 400."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import msgspec
from starlette.requests import Request

from octavo_runtime.server.errors import ApiError, bad_request


async def read_json(request: Request, limit_bytes: int, limit_seconds: float) -> object:
    """The decoded body; raises ApiError 413 over `limit_bytes` (before reading on), 408 when it is not there within
    `limit_seconds`, and 400 for broken JSON."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit_bytes:
        raise _too_large(limit_bytes)
    try:
        async with asyncio.timeout(limit_seconds):
            body = await _read(request, limit_bytes)
    except TimeoutError:
        raise _too_slow(limit_seconds) from None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the request body is not JSON: {error}", None, code="invalid_json") from error


async def _read(request: Request, limit_bytes: int) -> bytearray:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes)
    return body


def _too_slow(limit_seconds: float) -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_TIMEOUT,
        f"the request body did not arrive within {limit_seconds:g} s",
        "request_timeout",
        should_retry=True,
    )


def _too_large(limit_bytes: int) -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the request body is larger than {limit_bytes} bytes (--max-request-bytes)",
        "request_too_large",
        should_retry=False,
    )
