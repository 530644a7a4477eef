"""The ASGI application: probes, metrics, drain, and the API behind its gate."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from octavo_runtime.contract import endpoints
from octavo_runtime.engine.logs import logger
from octavo_runtime.server.errors import ApiError
from octavo_runtime.server.gate import Gate
from octavo_runtime.server.integrity import after_of
from octavo_runtime.server.lifecycle import Lifecycle, Phase
from octavo_runtime.server.metrics import ServerMetrics
from octavo_runtime.server.openai import OpenAiApi

CLIENT_CLOSED_REQUEST = 499
"""nginx's number for a client that hung up; nobody receives it."""


@dataclass(frozen=True)
class Probes:
    """Answers of the endpoints that are not the API."""

    lifecycle: Lifecycle
    metrics: ServerMetrics
    sick: Callable[[], str | None]
    """Why the engine is dead or stalled; None while it is well."""
    doubtful: Callable[[], str | None]
    """Why answers should be asked of another replica although the engine lives; None while there is no reason."""
    report: Callable[[int], dict[str, object]]
    """The body of /integrity with the violations after an id."""

    async def health(self, _request: Request) -> Response:
        """Liveness: 200 while the engine lives and steps, also while loading and draining."""
        sick = self.sick()
        body = self._body("ok" if sick is None else sick)
        return JSONResponse(body, HTTPStatus.OK if sick is None else HTTPStatus.SERVICE_UNAVAILABLE)

    async def ready(self, _request: Request) -> Response:
        """Readiness: 200 once the model is loaded and until a drain begins, while nothing speaks against it."""
        unfit, phase = self.sick() or self.doubtful(), self.lifecycle.phase
        ready = unfit is None and phase is Phase.SERVING
        body = self._body("ready" if ready else unfit or phase.value)
        return JSONResponse(body, HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE)

    def _body(self, status: str) -> dict[str, object]:
        return {"status": status, "phase": self.lifecycle.phase.value, "in_flight": self.lifecycle.in_flight}

    async def exposition(self, _request: Request) -> Response:
        """Prometheus' text format."""
        return Response(self.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    async def integrity(self, request: Request) -> Response:
        """KV integrity: mode, counters and the last violations."""
        return JSONResponse(self.report(after_of(request.query_params)))

    async def drain(self, request: Request) -> Response:
        """Begin to drain, from loopback only; asked again, it says how far the drain is."""
        if not _is_loopback(request):
            raise ApiError(HTTPStatus.FORBIDDEN, "/drain answers on loopback only", "forbidden", should_retry=False)
        self.lifecycle.begin_drain()
        body = {
            "phase": self.lifecycle.phase.value,
            "in_flight": self.lifecycle.in_flight,
            "drained": self.lifecycle.drained,
        }
        return JSONResponse(body)


def build_app(lifecycle: Lifecycle, probes: Probes, api: OpenAiApi) -> Starlette:
    """All routes, the gate in front of the API, errors in OpenAI's shape."""
    return Starlette(
        routes=[
            Route(endpoints.HEALTH, probes.health),
            Route(endpoints.READY, probes.ready),
            Route(endpoints.METRICS, probes.exposition),
            Route(endpoints.INTEGRITY, probes.integrity),
            Route(endpoints.DRAIN, probes.drain, methods=["POST"]),
            Route(endpoints.MODELS, api.models),
            Route(endpoints.MODELS + "/{model:path}", api.model),
            Route(endpoints.CHAT_COMPLETIONS, api.chat, methods=["POST"]),
            Route(endpoints.COMPLETIONS, api.completion, methods=["POST"]),
        ],
        middleware=[Middleware(Gate, lifecycle=lifecycle)],
        exception_handlers={
            ApiError: _api_error,
            HTTPException: _http_error,
            ClientDisconnect: _hung_up,
            Exception: _defect,
        },
    )


def _is_loopback(request: Request) -> bool:
    if request.client is None:
        return False
    address = ipaddress.ip_address(request.client.host)
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


async def _api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    headers = error.headers()
    if error.status is HTTPStatus.REQUEST_TIMEOUT:
        headers["connection"] = "close"  # its body may still trickle in; nobody waits for it
    return JSONResponse(error.body(), error.status, headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    answer = ApiError(HTTPStatus(error.status_code), message, "not_found" if error.status_code == 404 else "http_error")
    return JSONResponse(answer.body(), answer.status, error.headers)


async def _hung_up(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _defect(request: Request, error: Exception) -> Response:
    logger("server").error("request failed", exc_info=error, extra={"path": request.url.path})
    answer = ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed on this request", "internal_error")
    return JSONResponse(answer.body(), answer.status)
