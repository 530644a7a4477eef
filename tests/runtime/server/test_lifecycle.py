"""From loading to drained, and what ends a server: each on a real process and a real socket."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import time

import httpx
import pytest

from octavo_runtime.contract.refused import Refused
from octavo_runtime.server.app import Probes, build_app
from octavo_runtime.server.generation import Generation
from octavo_runtime.server.lifecycle import Lifecycle, Phase
from octavo_runtime.server.metrics import EngineView, ServerMetrics
from octavo_runtime.server.openai import OpenAiApi
from octavo_runtime.server.run import bind
from tests.runtime.server.echo import DIE, HANG, HOLD, RELEASE, crash_at_start, never_starts, program, refuse_to_start
from tests.runtime.server.serving import WAIT_SECONDS, Serving, serving, until


class Clock:
    """Moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_drain_is_announced_and_then_new_requests_are_refused() -> None:
    clock = Clock()
    life = Lifecycle(clock, announce_seconds=5, drain_seconds=60)
    phases = [life.phase]
    life.loaded()
    phases.append(life.phase)
    with life.request():
        life.begin_drain()
        phases.append(life.phase)
        assert life.announce_left_seconds == 5
        clock.now += 4
        life.begin_drain()
        phases.append(life.phase)
        assert life.announce_left_seconds == 1, "a second drain does not begin anew"
        clock.now += 1
        phases.append(life.phase)
        drained = [life.drained]
    drained.append(life.drained)
    assert drained == [False, True]
    assert phases == [Phase.LOADING, Phase.SERVING, Phase.ANNOUNCING, Phase.ANNOUNCING, Phase.REFUSING]


def test_the_drain_time_counts_from_the_drains_beginning() -> None:
    """preStop has waited the drain time already when SIGTERM comes; waiting it again would end in SIGKILL."""
    clock = Clock()
    life = Lifecycle(clock, announce_seconds=5, drain_seconds=60)
    clock.now += 1000
    assert life.drain_left_seconds == 65
    life.begin_drain()
    clock.now += 40
    assert life.drain_left_seconds == 25
    life.begin_drain()
    clock.now += 40
    assert life.drain_left_seconds == 0


def test_open_requests_keep_the_drain_time_when_the_announcement_ends() -> None:
    clock = Clock()
    life = Lifecycle(clock, announce_seconds=5, drain_seconds=60)
    life.loaded()
    life.begin_drain()
    clock.now += 5
    life.end_announce()
    assert life.phase is Phase.REFUSING
    assert life.drain_left_seconds == 60


def test_an_announcement_cut_short_refuses_at_once_and_leaves_open_requests_their_time() -> None:
    life = Lifecycle(Clock(), announce_seconds=5, drain_seconds=60)
    life.loaded()
    life.end_announce()
    assert (life.phase, life.announce_left_seconds) == (Phase.REFUSING, 0)
    assert life.drain_left_seconds == 65


def test_a_drain_before_the_model_is_loaded_is_a_drain() -> None:
    life = Lifecycle(Clock(), announce_seconds=5, drain_seconds=60)
    life.begin_drain()
    assert (life.phase, life.drained) == (Phase.REFUSING, True)
    life.loaded()
    assert life.phase is Phase.REFUSING, "loading that ends after the drain began does not open the gate again"


async def running(server: Serving, count: int) -> None:
    async def runs() -> bool:
        return await server.metric("octavo_requests_running") == count

    await until(runs)


async def test_while_loading_the_api_says_so_and_liveness_holds() -> None:
    async with serving(program(never_starts), ready=False) as server:
        health = await server.http.get("/health")
        ready = await server.http.get("/ready")
        refused = await server.complete("x")
        assert (health.status_code, ready.status_code, refused.status_code) == (200, 503, 503)
        assert ready.json() == {"status": "loading", "phase": "loading", "in_flight": 0}
        assert refused.json()["error"]["code"] == "loading"
        assert int(refused.headers["retry-after"]) >= 1
        os.kill(os.getpid(), signal.SIGTERM)
        assert await server.ended() is None


async def test_a_drain_while_loading_refuses_instead_of_serving_what_is_not_there() -> None:
    async with serving(program(never_starts), ready=False, announce_seconds=600.0) as server:
        drain = await server.http.post("/drain")
        assert drain.json() == {"phase": "refusing", "in_flight": 0, "drained": True}
        for refused in (await server.complete("x"), await server.http.get("/v1/models")):
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        os.kill(os.getpid(), signal.SIGTERM)
        assert await server.ended() is None


async def test_a_signal_ends_an_idle_server_at_once() -> None:
    async with serving() as server:
        os.kill(os.getpid(), signal.SIGTERM)
        assert await server.ended() is None


async def test_while_a_drain_is_announced_answers_close_their_connection() -> None:
    async with serving(announce_seconds=600.0) as server:
        before = await server.complete("echo a")
        drain = await server.http.post("/drain")
        after = await server.complete("echo a")
        assert drain.json() == {"phase": "announcing", "in_flight": 0, "drained": False}
        assert (before.status_code, after.status_code) == (200, 200)
        assert "connection" not in before.headers
        assert after.headers["connection"] == "close"
        assert (await server.http.get("/ready")).status_code == 503
        assert (await server.http.get("/health")).status_code == 200


async def test_a_drain_waits_for_open_requests_and_refuses_new_ones() -> None:
    async with serving(announce_seconds=0.0, drain_seconds=600.0) as server:
        held = asyncio.create_task(server.complete(HOLD))
        await running(server, 1)
        freed = asyncio.create_task(server.http.send(slow_request(server)))

        async def both_in_flight() -> bool:
            return (await server.http.get("/health")).json()["in_flight"] == 2  # type: ignore[no-any-return]

        await until(both_in_flight)
        drain = (await server.http.post("/drain")).json()
        assert (drain["phase"], drain["in_flight"], drain["drained"]) == ("refusing", 2, False)
        os.kill(os.getpid(), signal.SIGTERM)
        refused = await server.complete("echo a")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["connection"] == "close"
        assert refused.headers["x-should-retry"] == "true"
        assert not server.task.done()
        SLOW.set()
        assert (await freed).status_code == 200
        assert (await held).json()["choices"][0]["text"].startswith(HOLD)
        assert await server.ended() is None


SLOW = asyncio.Event()


def slow_request(server: Serving) -> httpx.Request:
    """A request that is let in now and whose body, the release of what is held, comes when `SLOW` is set."""

    async def body() -> object:
        yield b'{"model": "echo", "max_tokens": 1, '
        await SLOW.wait()
        yield f'"prompt": "{RELEASE}"}}'.encode()

    return server.http.build_request("POST", "/v1/completions", content=body())  # type: ignore[arg-type]


async def test_a_body_that_does_not_arrive_in_time_is_refused_and_delays_no_drain() -> None:
    async with serving(drain_seconds=600.0, max_body_seconds=0.05) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
        async with asyncio.timeout(WAIT_SECONDS):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert head.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in head
        assert b"the request body did not arrive within 0.05 s" in body
        os.kill(os.getpid(), signal.SIGTERM)
        assert await server.ended() is None


async def test_when_the_drain_time_is_over_open_requests_get_a_retryable_error() -> None:
    async with serving(drain_seconds=0.05) as server:
        held = asyncio.create_task(server.complete(HOLD))
        await running(server, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        answer = await held
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "drain_deadline")
        assert answer.headers["x-should-retry"] == "true"
        assert await server.ended() is None


async def test_after_a_completed_drain_a_signal_ends_the_server_at_once() -> None:
    async with serving(announce_seconds=0.0, drain_seconds=600.0) as server:
        assert (await server.http.post("/drain")).json()["drained"]
        os.kill(os.getpid(), signal.SIGTERM)
        assert await server.ended() is None


async def test_ctrl_c_skips_the_announcement_and_a_second_one_aborts() -> None:
    async with serving(announce_seconds=600.0, drain_seconds=600.0) as server:
        held = asyncio.create_task(server.complete(HOLD))
        await running(server, 1)
        os.kill(os.getpid(), signal.SIGINT)

        async def refuses() -> bool:
            return (await server.complete("echo a")).status_code == 503

        await until(refuses)
        os.kill(os.getpid(), signal.SIGINT)
        assert (await held).json()["error"]["code"] == "drain_deadline"
        assert await server.ended() is None


@pytest.mark.parametrize(
    ("peer", "status"),
    [
        ("127.0.0.1", 200),
        ("127.9.9.9", 200),
        ("::1", 200),
        ("::ffff:127.0.0.1", 200),
        ("10.0.0.5", 403),
        ("fe80::1", 403),
    ],
)
async def test_drain_answers_on_loopback_only(peer: str, status: int) -> None:
    life = Lifecycle(Clock(), announce_seconds=5, drain_seconds=60)
    life.loaded()
    view = EngineView(lambda: None, lambda: None, lambda: 0.0, lambda: None)
    probes = Probes(life, ServerMetrics("m", 1, view), lambda: None, lambda: None, lambda _after: {})
    never: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
    transport = httpx.ASGITransport(build_app(life, probes, OpenAiApi("m", 0, never.result)), client=(peer, 1234))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
        assert (await http.post("/drain")).status_code == status
    phases = {200: Phase.ANNOUNCING, 403: Phase.SERVING}
    assert life.phase is phases[status]


async def test_the_engines_death_is_an_error_to_every_open_request_and_ends_the_server() -> None:
    async with serving() as server:
        held = [asyncio.create_task(server.complete(HOLD)) for _ in range(3)]
        await running(server, 3)
        dies = await server.complete(DIE)
        answers = [dies, *[await one for one in held]]
        assert {answer.status_code for answer in answers} == {503}
        assert {answer.json()["error"]["code"] for answer in answers} == {"engine_dead"}
        failed = await server.ended()
        assert failed is not None
        assert (failed.reason, failed.refused) == ("EngineDied", False)
        assert "exit code 7" in failed.message


async def test_an_engine_killed_from_outside_is_noticed() -> None:
    async with serving() as server:
        await server.complete("echo a")
        engines = [child for child in multiprocessing.active_children() if child.name == "octavo-engine"]
        assert len(engines) == 1
        engines[0].kill()
        failed = await server.ended()
        assert failed is not None
        assert "signal 9" in failed.message


async def test_an_engine_that_refuses_says_why() -> None:
    async with serving(program(refuse_to_start), ready=False) as server:
        failed = await server.ended()
        assert failed is not None
        assert (failed.reason, failed.message, failed.refused) == ("UnexpectedDevice", "expected another device", True)


async def test_an_engine_that_crashes_at_its_start_says_why() -> None:
    async with serving(program(crash_at_start), ready=False) as server:
        failed = await server.ended()
        assert failed is not None
        assert (failed.reason, failed.message, failed.refused) == ("RuntimeError", "no such kernel", False)


class Watch:
    """A clock that can be put forward, and pauses that end when a look is asked for."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.looks = asyncio.Semaphore(0)

    def __call__(self) -> float:
        return time.monotonic() + self.ahead

    async def pause(self, _seconds: float) -> None:
        await self.looks.acquire()


async def silent(server: Serving) -> None:
    """Wait until several heartbeats of the engine are missing."""

    async def for_seconds() -> bool:
        return await server.metric("octavo_engine_silent_seconds") > 2

    await until(for_seconds)


async def test_a_stalled_engine_fails_liveness_then_every_request_and_ends_the_server() -> None:
    watch = Watch()
    async with serving(stall_seconds=600.0, clock=watch, pause=watch.pause) as server:
        held = asyncio.create_task(server.complete(HOLD))
        await running(server, 1)
        hangs = asyncio.create_task(server.complete(HANG))
        await silent(server)
        assert (await server.http.get("/health")).status_code == 200

        watch.ahead += 600
        health = await server.http.get("/health")
        assert (health.status_code, (await server.http.get("/ready")).status_code) == (503, 503)
        assert health.json()["status"].startswith("engine stalled for 60")

        watch.looks.release()
        watch.looks.release()
        for answer in (await held, await hangs):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_stalled")
            assert answer.headers["x-should-retry"] == "true"
        failed = await server.ended()
        assert failed is not None
        assert (failed.reason, failed.refused, failed.retryable) == ("EngineStalled", False, True)
        assert not [child for child in multiprocessing.active_children() if child.name == "octavo-engine"]


async def test_one_look_at_a_silent_engine_does_not_kill_it() -> None:
    """After this process itself was paused, heartbeats wait to be read: the engine is late by our clock and well."""
    watch = Watch()
    async with serving(stall_seconds=600.0, clock=watch, pause=watch.pause) as server:
        watch.ahead += 1000
        watch.looks.release()

        async def heard_of() -> bool:
            return (await server.http.get("/health")).status_code == 200

        await until(heard_of)
        watch.looks.release()
        assert (await server.complete("echo a")).status_code == 200
        assert not server.task.done()


async def test_overload_is_answered_with_a_time_to_come_back() -> None:
    async with serving(max_queued_requests=1) as server:
        held = [asyncio.create_task(server.complete(HOLD)) for _ in range(5)]
        await running(server, 5)
        refused = await server.complete("echo a")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert "5 requests are open; 4 run at once and 1 may wait" in refused.json()["error"]["message"]
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        assert 1000 <= int(refused.headers["retry-after-ms"]) <= 30000
        assert refused.headers["x-should-retry"] == "true"
        assert await server.metric('octavo_admission_rejections_total{reason="queue_requests"}') == 1
        for one in held:
            one.cancel()


async def test_waiting_prompt_tokens_are_bounded_too() -> None:
    async with serving(max_queued_tokens=100) as server:
        held = asyncio.create_task(server.complete(HOLD))
        await running(server, 1)
        refused = await server.complete("x" * 97)
        assert refused.json()["error"]["code"] == "overloaded"
        assert (
            "4 prompt tokens wait for their first answer and this request brings 97"
            in refused.json()["error"]["message"]
        )
        held.cancel()


def test_a_port_in_use_is_refused_with_what_to_do() -> None:
    taken = bind("127.0.0.1", 0)
    port = taken.getsockname()[1]
    with pytest.raises(Refused, match=rf"cannot listen on 127\.0\.0\.1 port {port}: .*; choose another --port"):
        bind("127.0.0.1", port)
    taken.close()


def test_an_address_that_is_not_ours_is_refused() -> None:
    with pytest.raises(Refused, match=r"cannot listen on 192\.0\.2\.1"):
        bind("192.0.2.1", 8000)


async def test_the_server_works_over_ipv6() -> None:
    sock = bind("::1", 0)
    assert sock.family is socket.AF_INET6
    sock.close()
