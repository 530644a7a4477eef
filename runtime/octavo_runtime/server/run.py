"""Running the server: bind, start the engine, serve, drain, and end with the right exit code."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from octavo_runtime.contract.refused import Refused
from octavo_runtime.engine.logs import logger
from octavo_runtime.engine.messages import Failed, Started
from octavo_runtime.engine.process import EngineProgram
from octavo_runtime.server.admission import AdmissionLimits, FinishRate
from octavo_runtime.server.app import Probes, build_app
from octavo_runtime.server.engine_client import ENGINE_STALLED, EngineClient
from octavo_runtime.server.generation import DRAIN_DEADLINE, Generation
from octavo_runtime.server.integrity import doubt, integrity_report
from octavo_runtime.server.lifecycle import Lifecycle
from octavo_runtime.server.metrics import EngineView, ServerMetrics
from octavo_runtime.server.openai import OpenAiApi
from octavo_runtime.server.orphans import collect_orphans
from octavo_runtime.server.settings import ServeSettings
from octavo_runtime.server.text import TextCodec

FLUSH_SECONDS = 2.0
"""How long answers that are errors may take to leave when the server ends."""

KEEP_ALIVE_SECONDS = 75
"""Longer than the 60 s after which common proxies drop an idle connection, so that they and not we close it."""

BACKLOG = 2048

WATCH_SECONDS = 1.0
"""How often the watchdog looks at the engine's last sign of life."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises Refused when the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if family is socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        sock.close()
        raise Refused(
            "AddressUnavailable", f"cannot listen on {host} port {port}: {error}; choose another --port or --host"
        ) from None
    return sock


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers: a signal begins a drain here, it does not stop the server."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


@dataclass(frozen=True)
class Server:
    """One HTTP server over one engine process."""

    settings: ServeSettings
    program: EngineProgram
    load_codec: Callable[[], TextCodec]
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    """Waits some seconds between two looks of the watchdog."""

    async def run(self, sock: socket.socket) -> Failed | None:
        """Serve on `sock` until a signal's drain is over (None) or until the engine ends (why)."""
        loop = asyncio.get_running_loop()
        lifecycle = Lifecycle(self.clock, self.settings.announce_seconds, self.settings.drain_seconds)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _on_signal, number, lifecycle)
        client = EngineClient(self.program, self.clock)
        mode, settings = self.program.settings.integrity, self.settings
        metrics = ServerMetrics(settings.served_model, settings.max_num_seqs, _view(client), mode)
        ready: asyncio.Future[Generation] = loop.create_future()
        api = OpenAiApi(settings.served_model, int(time.time()), ready.result)
        probes = Probes(
            lifecycle,
            metrics,
            sick=lambda: self._sick(client),
            doubtful=lambda: doubt(client.stats, client.violations, settings.unready_after_violations),
            report=lambda after: integrity_report(mode, client.started_at, client.stats, client.violations, after),
        )
        app = build_app(lifecycle, probes, api)
        http = _Uvicorn(_uvicorn_config(app))
        await client.start()
        life = _Life(
            client,
            lifecycle,
            http,
            self._until_stalled,
            serving=asyncio.create_task(http.serve(sockets=[sock]), name="http"),
            loading=asyncio.create_task(self._load(client, metrics, ready, lifecycle), name="loading"),
        )
        orphans = asyncio.create_task(collect_orphans(lambda: {client.pid}), name="orphans")
        try:
            return await life.until_end()
        finally:
            orphans.cancel()
            await life.close()

    async def _load(
        self,
        client: EngineClient,
        metrics: ServerMetrics,
        ready: asyncio.Future[Generation],
        lifecycle: Lifecycle,
    ) -> None:
        codec = await asyncio.to_thread(self.load_codec)
        started = await asyncio.shield(client.started)
        _log_started(self.settings, started)
        queued = self.settings.max_queued_tokens or 2 * started.kv_tokens
        ready.set_result(
            Generation(
                client=client,
                codec=codec,
                limits=AdmissionLimits(self.settings.max_num_seqs, self.settings.max_queued_requests, queued),
                max_model_len=started.max_model_len,
                max_body_bytes=self.settings.max_body_bytes or _body_limit_bytes(started.max_model_len),
                max_body_seconds=self.settings.max_body_seconds,
                vocab_size=self.settings.vocab_size,
                metrics=metrics,
                rate=FinishRate(),
                clock=self.clock,
            )
        )
        lifecycle.loaded()

    def _sick(self, client: EngineClient) -> str | None:
        if not client.alive:
            return "engine dead"
        if client.started.done() and self._silent_too_long(client):
            return f"engine stalled for {client.silent_seconds:.0f} s"
        return None

    def _silent_too_long(self, client: EngineClient) -> bool:
        return client.silent_seconds > self.settings.stall_seconds

    async def _until_stalled(self, client: EngineClient) -> Failed:
        """Until a started engine is silent for too long; then every open request has an error and the engine's process
        is killed. Two looks must agree: after a pause of this process itself, heartbeats wait to be read."""
        overdue = False
        while not (overdue and self._silent_too_long(client)):
            overdue = self._silent_too_long(client)
            await self.pause(WATCH_SECONDS)
        message = f"the engine gave no sign of life for {client.silent_seconds:.0f} s (--stall-seconds)"
        logger("server").error("engine stalled", extra={"open_answers": client.open_answers})
        client.fail_open_requests(ENGINE_STALLED, message)
        client.kill()
        return Failed("EngineStalled", message, refused=False, retryable=True)


@dataclass(frozen=True)
class _Life:
    """The tasks of a running server, and what ends them."""

    client: EngineClient
    lifecycle: Lifecycle
    http: _Uvicorn
    until_stalled: Callable[[EngineClient], Coroutine[Any, Any, Failed]]
    serving: asyncio.Task[None]
    loading: asyncio.Task[None]

    async def until_end(self) -> Failed | None:
        """Wait for the engine's end or stall, an error of ours, or a signal and the drain after it."""
        drained = asyncio.create_task(self._until_drained(), name="drain")
        watchdog: asyncio.Task[Failed] | None = None
        try:
            await _any_of(self.client.ended, drained, self.loading, self.serving)
            for task in (self.loading, self.serving):
                if task.done() and not task.cancelled():
                    task.result()
            watchdog = asyncio.create_task(self.until_stalled(self.client), name="watchdog")
            await _any_of(self.client.ended, drained, self.serving, watchdog)
            if watchdog.done():
                return watchdog.result()
            return self.client.ended.result() if self.client.ended.done() else None
        finally:
            drained.cancel()
            if watchdog is not None:
                watchdog.cancel()

    async def _until_drained(self) -> None:
        """Until a signal came and the drain that it began, or found going on, is over."""
        life, log = self.lifecycle, logger("server")
        await life.stop_requested.wait()
        if not self.loading.done():
            return
        fields = {"in_flight": life.in_flight, "at_most_seconds": round(life.drain_left_seconds, 1)}
        log.info("draining", extra=fields)
        await _first(life.abort_requested.wait(), asyncio.sleep(life.announce_left_seconds))
        life.end_announce()
        await _first(life.abort_requested.wait(), life.wait_idle(), asyncio.sleep(life.drain_left_seconds))
        if life.in_flight:
            log.warning("drain time is over", extra={"in_flight": life.in_flight})
            message = "the server is stopping and this request did not end in time; send it again"
            self.client.fail_open_requests(DRAIN_DEADLINE, message)
            await _first(life.wait_idle(), asyncio.sleep(FLUSH_SECONDS))

    async def close(self) -> None:
        """Let the last answers out, then end both sides."""
        self.loading.cancel()
        await _first(self.lifecycle.wait_idle(), asyncio.sleep(FLUSH_SECONDS))
        self.http.should_exit = True
        await asyncio.wait({self.serving}, timeout=2 * FLUSH_SECONDS)
        self.serving.cancel()
        await self.client.stop()


def _body_limit_bytes(max_model_len: int) -> int:
    return max(1 << 20, 64 * max_model_len)


def _on_signal(number: signal.Signals, lifecycle: Lifecycle) -> None:
    """SIGTERM and the first Ctrl-C drain; Ctrl-C skips the announcement, and a second one aborts open requests."""
    if lifecycle.stop_requested.is_set() and number is signal.SIGINT:
        lifecycle.abort_requested.set()
    if number is signal.SIGINT:
        lifecycle.end_announce()
    lifecycle.begin_drain()
    lifecycle.stop_requested.set()


async def _any_of(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    """Until the first of several coroutines is done; the others are cancelled."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await _any_of(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _view(client: EngineClient) -> EngineView:
    def started() -> Started | None:
        return client.started.result() if client.started.done() and not client.started.cancelled() else None

    return EngineView(lambda: client.stats, started, lambda: client.silent_seconds, lambda: client.violations.last)


def _uvicorn_config(app: object) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http="httptools",
        loop="none",
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(FLUSH_SECONDS),
    )


def _log_started(settings: ServeSettings, started: Started) -> None:
    log = logger("server")
    for line in started.memory:
        fields = {"part": line.part, "planned_bytes": line.planned_bytes, "measured_bytes": line.measured_bytes}
        log.info("memory", extra=fields)
    log.info(
        "ready",
        extra={
            "model": settings.served_model,
            "weights": started.weights,
            "kv_cache": started.kv_cache,
            "kv_tokens": started.kv_tokens,
            "max_model_len": started.max_model_len,
            "host": settings.host,
            "port": settings.port,
        },
    )


def codec_loader(model: Path) -> Callable[[], TextCodec]:
    """Defers the tokenizer's imports and reading to the thread that calls the result."""

    def load() -> TextCodec:
        from octavo_runtime.server.text import load_codec

        return load_codec(model)

    return load
