"""Several answers to one prompt (`n`), over a real socket and a real engine process."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.runtime.server.echo import FAIL_LATE, HOLD, PAUSE, TELL
from tests.runtime.server.serving import Serving, serving, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Serving]:
    async with serving(max_queued_requests=2) as running:
        yield running


def chunks_of(body: str) -> list[dict[str, Any]]:
    """The chunks of a stream that ended well."""
    *blocks, done, nothing = body.split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


async def idle(server: Serving) -> None:
    async def runs_nothing() -> bool:
        return await server.metric("octavo_requests_running") == 0

    await until(runs_nothing)


async def test_all_answers_come_in_one_piece_in_order_and_are_counted_together(server: Serving) -> None:
    body = (await server.complete("each four|a|sixsix", n=3, max_tokens=50)).json()
    assert [choice["text"] for choice in body["choices"]] == ["four", "a", "sixsix"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert {choice["finish_reason"] for choice in body["choices"]} == {"stop"}
    assert body["usage"] == {"prompt_tokens": 18, "completion_tokens": 5 + 2 + 7, "total_tokens": 18 + 14}


async def test_each_answer_ends_for_its_own_reason(server: Serving) -> None:
    body = (await server.chat("each longer than this|a", n=2, max_tokens=5)).json()
    assert [choice["message"]["content"] for choice in body["choices"]] == ["longe", "a"]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["length", "stop"]


async def test_chunks_of_a_stream_say_which_answer_they_belong_to(server: Serving) -> None:
    response = await server.chat("each four|a", n=2, stream=True, stream_options={"include_usage": True})
    *chunks, usage = chunks_of(response.text)
    deltas: dict[int, list[dict[str, str]]] = defaultdict(list)
    finishes: dict[int, list[str | None]] = defaultdict(list)
    for chunk in chunks:
        (choice,) = chunk["choices"]
        deltas[choice["index"]].append(choice["delta"])
        finishes[choice["index"]].append(choice["finish_reason"])
    assert deltas[0] == [{"role": "assistant", "content": "f"}, *({"content": c} for c in "our"), {}]
    assert deltas[1] == [{"role": "assistant", "content": "a"}, {}]
    assert finishes == {0: [None] * 4 + ["stop"], 1: [None, "stop"]}
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 5 + 2


async def test_characters_of_several_tokens_do_not_mix_between_answers(server: Serving) -> None:
    response = await server.complete("each né 🙂|🙂🙃", n=2, stream=True, max_tokens=50)
    texts = {0: "", 1: ""}
    for chunk in chunks_of(response.text):
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == {0: "né 🙂", 1: "🙂🙃"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_its_answer_and_no_other(server: Serving, *, stream: bool) -> None:
    """The stopped answer goes on for ever in an engine that is not told to end it."""
    fields: dict[str, object] = {"n": 2, "stop": "STOP", "max_tokens": 60, "ignore_eos": True, "stream": stream}
    before = await server.metric("octavo_generation_tokens_total")
    response = await server.complete("each abSTOPab|defg", **fields)
    if stream:
        texts, finishes = {0: "", 1: ""}, {}
        for chunk in chunks_of(response.text):
            (choice,) = chunk["choices"]
            assert choice["index"] not in finishes, "nothing of an answer follows its end"
            texts[choice["index"]] += choice["text"]
            if choice["finish_reason"] is not None:
                finishes[choice["index"]] = choice["finish_reason"]
    else:
        choices = response.json()["choices"]
        texts = {choice["index"]: choice["text"] for choice in choices}
        finishes = {choice["index"]: choice["finish_reason"] for choice in choices}
        assert response.json()["usage"]["completion_tokens"] == 6 + 60, "tokens after the end are not counted"
    assert texts == {0: "ab", 1: "defg" * 15}
    assert finishes == {0: "stop", 1: "length"}
    assert await server.metric("octavo_generation_tokens_total") == before + 6 + 60


async def test_an_answer_that_a_stop_string_ends_leaves_the_engine_while_others_go_on(server: Serving) -> None:
    held = asyncio.create_task(server.complete(f"each {PAUSE}a STOP|{HOLD}", n=2, stop="STOP"))

    async def one_is_left() -> bool:
        return await server.metric("octavo_requests_running") == 1

    await until(one_is_left)
    assert not held.done()
    held.cancel()
    await idle(server)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_of_one_answer_ends_all(server: Serving, *, stream: bool) -> None:
    errors = await server.metric('octavo_requests_finished_total{reason="error"}')
    response = await server.complete(f"each a|{FAIL_LATE}|{HOLD}", n=3, stream=stream)
    if stream:
        assert "[DONE]" not in response.text
        error = json.loads(response.text.split("\n\n")[-2].removeprefix("data: "))["error"]
    else:
        assert response.status_code == 500
        error = response.json()["error"]
    assert error["code"] == "kv_integrity_violation"
    assert await server.metric('octavo_requests_finished_total{reason="error"}') == errors + 2, "one had ended before"
    await idle(server)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_frees_all_answers(server: Serving, *, stream: bool) -> None:
    held = asyncio.create_task(server.complete(f"each {HOLD}|{HOLD}|{HOLD}", n=3, stream=stream))

    async def three_run() -> bool:
        return await server.metric("octavo_requests_running") == 3

    await until(three_run)
    held.cancel()
    await idle(server)


async def test_answers_are_admitted_as_so_many_requests(server: Serving) -> None:
    held = asyncio.create_task(server.complete(f"each {HOLD}|{HOLD}|{HOLD}|{HOLD}", n=4))

    async def four_run() -> bool:
        return await server.metric("octavo_requests_running") == 4

    await until(four_run)
    refused = await server.complete("each a|b|c", n=3)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    assert "4 requests are open and this one asks for 3 answers; 4 run at once" in refused.json()["error"]["message"]
    assert (await server.complete("each a|b", n=2)).status_code == 200
    held.cancel()
    await idle(server)


async def test_more_answers_than_there_are_places_is_no_matter_of_time(server: Serving) -> None:
    refused = await server.complete("each a", n=7)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
    assert "n is 7; at most 6 answers may be open on this server" in refused.json()["error"]["message"]


async def test_prompt_tokens_of_several_answers_count_once() -> None:
    async with serving(max_queued_tokens=60) as server:
        held = asyncio.create_task(server.complete(f"each {HOLD}|{HOLD}|{HOLD}", n=3))  # 19 tokens

        async def three_run() -> bool:
            return await server.metric("octavo_requests_running") == 3

        await until(three_run)
        assert await server.metric("octavo_prompt_tokens_total") == 19
        assert (await server.complete("echo " + "x" * 36)).status_code == 200
        refused = await server.complete("echo " + "x" * 37)
        assert "19 prompt tokens wait" in refused.json()["error"]["message"]
        held.cancel()


async def test_priority_and_salt_reach_the_engine(server: Serving) -> None:
    told = (await server.complete(TELL, priority=-7, cache_salt="tenant a", max_tokens=50)).json()
    assert told["choices"][0]["text"] == "-7 tenant a"
    told = (await server.complete(TELL, max_tokens=50)).json()
    assert told["choices"][0]["text"] == "0 "
