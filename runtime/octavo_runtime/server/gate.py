"""The gate in front of the API: counts what is in flight, and turns new requests away while loading or draining.

Plain ASGI, so that a request counts until the last byte of a streamed answer has gone. Probes, metrics and /drain
pass at all times.
"""

from __future__ import annotations

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo_runtime.server.errors import ApiError, unavailable
from octavo_runtime.server.lifecycle import Lifecycle, Phase

API_PREFIX = "/v1/"
LOADING_RETRY_SECONDS = 5.0
DRAINING_RETRY_SECONDS = 1.0
"""Another replica answers, or this pod's successor; the client only needs a new connection."""


class Gate:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, lifecycle: Lifecycle) -> None:
        self._app = app
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(API_PREFIX):
            await self._app(scope, receive, send)
            return

        async def send_and_close(message: Message) -> None:
            if message["type"] == "http.response.start" and self._lifecycle.phase in _CLOSING:
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        refusal = _refusal(self._lifecycle.phase)
        if refusal is not None:
            response = JSONResponse(refusal.body(), refusal.status, refusal.headers())
            await response(scope, receive, send_and_close)
            return
        with self._lifecycle.request():
            await self._app(scope, receive, send_and_close)


_CLOSING = frozenset({Phase.ANNOUNCING, Phase.REFUSING})


def _refusal(phase: Phase) -> ApiError | None:
    match phase:
        case Phase.LOADING:
            return unavailable("the model is loading", "loading", LOADING_RETRY_SECONDS)
        case Phase.REFUSING:
            return unavailable("this server is draining and takes no new requests", "draining", DRAINING_RETRY_SECONDS)
        case _:
            return None
