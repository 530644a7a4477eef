"""The client against a real HTTP server: what it sends, and what it makes of every kind of answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import kopf
import pytest
from aiohttp import web

from octavo_operator.cluster.client import APPLY_CONTENT_TYPE, KubeClient
from octavo_operator.cluster.errors import ApiError, Conflict, Rejected, Throttled, Unauthorized, Unreachable
from octavo_operator.cluster.kinds import DEPLOYMENTS, MODEL_DEPLOYMENTS, NODES, PODS

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def api_server(handler: Handler, *, timeout_seconds: float = 5.0) -> AsyncIterator[KubeClient]:
    """A client of a server that answers everything with `handler`; the n-th login gives token n."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    logins = 0

    def login() -> kopf.ConnectionInfo:
        nonlocal logins
        logins += 1
        return kopf.ConnectionInfo(server=f"http://127.0.0.1:{port}", token=f"token-{logins}")

    client = KubeClient(login, timeout_seconds)
    try:
        yield client
    finally:
        await client.close()
        await runner.cleanup()


def failing(status: int, reason: str, headers: dict[str, str] | None = None) -> Handler:
    async def answer(_request: web.Request) -> web.Response:
        return web.json_response({"reason": reason, "message": "because"}, status=status, headers=headers)

    return answer


async def test_an_apply_is_server_side_forced_and_by_our_one_field_manager() -> None:
    seen: dict[str, Any] = {}

    async def answer(request: web.Request) -> web.Response:
        seen.update(method=request.method, path=request.path, query=dict(request.query), type=request.content_type)
        seen.update(body=json.loads(await request.text()), token=request.headers["Authorization"])
        return web.json_response({"metadata": {"resourceVersion": "8"}})

    manifest = {"kind": "Deployment", "metadata": {"name": "d", "namespace": "team"}}
    async with api_server(answer) as client:
        assert await client.apply(DEPLOYMENTS, manifest) == {"metadata": {"resourceVersion": "8"}}
    assert seen == {
        "method": "PATCH",
        "path": "/apis/apps/v1/namespaces/team/deployments/d",
        "query": {"fieldManager": "octavo-operator", "force": "true"},
        "type": APPLY_CONTENT_TYPE,
        "body": manifest,
        "token": "Bearer token-1",
    }


async def test_a_list_is_read_page_by_page_by_label() -> None:
    async def answer(request: web.Request) -> web.Response:
        assert request.query["labelSelector"] == "serving.octavo.dev/model"
        page = int(request.query.get("continue", "0"))
        metadata = {"resourceVersion": "77", **({"continue": str(page + 1)} if page < 2 else {})}
        return web.json_response({"items": [{"metadata": {"name": f"p{page}"}}], "metadata": metadata})

    async with api_server(answer) as client:
        items, version = await client.list_all(PODS, None)
    assert [item["metadata"]["name"] for item in items] == ["p0", "p1", "p2"]
    assert version == "77"


@pytest.mark.parametrize(
    ("status", "expected"),
    [(403, Rejected), (409, Conflict), (422, Rejected), (429, Throttled), (500, ApiError), (401, Unauthorized)],
)
async def test_a_refusal_becomes_the_error_that_says_what_can_be_done(status: int, expected: type[ApiError]) -> None:
    async with api_server(failing(status, "Reason", {"Retry-After": "3"})) as client:
        with pytest.raises(expected) as caught:
            await client.get(PODS, "team", "p")
    assert type(caught.value) is expected
    assert (caught.value.status, caught.value.reason, caught.value.message) == (status, "Reason", "because")
    assert caught.value.retry_after_seconds == 3


async def test_what_is_not_there_is_none_and_deleting_it_is_fine() -> None:
    async with api_server(failing(404, "NotFound")) as client:
        assert await client.get(PODS, "team", "p") is None
        await client.delete(PODS, {"metadata": {"name": "p", "namespace": "team", "uid": "u"}})
        assert not await client.served(MODEL_DEPLOYMENTS)


async def test_an_expired_token_is_read_anew() -> None:
    tokens: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        tokens.append(request.headers["Authorization"])
        if tokens[-1] == "Bearer token-1":
            return web.json_response({"reason": "Unauthorized"}, status=401)
        return web.json_response({"metadata": {"name": "p"}})

    async with api_server(answer) as client:
        assert await client.get(PODS, "team", "p") is not None
    assert tokens == ["Bearer token-1", "Bearer token-2"]


async def test_two_calls_refused_at_once_share_the_new_session_instead_of_closing_it() -> None:
    """The second refusal arrives while the first call's retry is under way, on the session that must stay open."""
    first_retry, second_retry = asyncio.Event(), asyncio.Event()
    tokens: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        name, old = request.path.rsplit("/", 1)[1], request.headers["Authorization"] == "Bearer token-1"
        tokens.append(f"{name} {request.headers['Authorization'][-1]}")
        if old and name == "late":
            await first_retry.wait()
        if old:
            return web.json_response({"reason": "Unauthorized"}, status=401)
        if name == "early":
            first_retry.set()
            await second_retry.wait()
        else:
            second_retry.set()
        return web.json_response({"metadata": {"name": name}})

    async with api_server(answer) as client:
        early, late = await asyncio.gather(client.get(PODS, "team", "early"), client.get(PODS, "team", "late"))
    assert (early, late) == ({"metadata": {"name": "early"}}, {"metadata": {"name": "late"}})
    assert sorted(tokens) == ["early 1", "early 2", "late 1", "late 2"], "one login serves both"


async def test_a_server_that_never_answers_is_unreachable_within_the_timeout() -> None:
    async def answer(_request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async with api_server(answer, timeout_seconds=0.2) as client:
        with pytest.raises(Unreachable):
            await client.get(PODS, "team", "p")


async def test_nobody_listening_is_unreachable() -> None:
    client = KubeClient(lambda: kopf.ConnectionInfo(server="http://127.0.0.1:1"), 5.0)
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        await client.get(PODS, "team", "p")
    await client.close()


async def test_a_gateway_that_answers_html_is_an_error_with_its_words() -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=502, text="<html>bad gateway</html>")

    async with api_server(answer) as client:
        with pytest.raises(ApiError, match="bad gateway"):
            await client.get(PODS, "team", "p")


@pytest.mark.parametrize("allowed", [True, False])
async def test_our_own_permissions_are_asked_of_the_server(allowed: bool) -> None:
    async def answer(request: web.Request) -> web.Response:
        asked = json.loads(await request.text())["spec"]["resourceAttributes"]
        assert (asked["verb"], asked["resource"]) == ("watch", "nodes")
        return web.json_response({"status": {"allowed": allowed}}, status=201)

    async with api_server(answer) as client:
        assert await client.allowed("watch", NODES) is allowed
