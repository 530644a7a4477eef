"""The OpenAI-shaped API over a real socket and a real engine process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import pairwise

import httpx
import pytest
import pytest_asyncio

from octavo_runtime.server.schema import ChatBody, parse_body
from tests.runtime.server.echo import FAIL, FAIL_LATE, HOLD, MAX_MODEL_LEN
from tests.runtime.server.serving import MODEL, Serving, serving, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Serving]:
    async with serving() as running:
        yield running


def events(body: str) -> list[object]:
    """The data of all server-sent events; `[DONE]` stays a string."""
    assert body.endswith("\n\n")
    data = [block.removeprefix("data: ") for block in body.removesuffix("\n\n").split("\n\n")]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


def error_of(response: httpx.Response) -> dict[str, object]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, object] = body["error"]
    return error


async def test_a_completion_comes_in_one_piece(server: Serving) -> None:
    response = await server.complete("echo hello", max_tokens=50)
    body = response.json()
    assert response.status_code == 200
    assert body["object"] == "text_completion"
    assert body["model"] == MODEL
    assert body["id"].startswith("cmpl-")
    assert body["choices"] == [{"text": "hello", "index": 0, "finish_reason": "stop", "logprobs": None}]
    assert body["usage"] == {"prompt_tokens": 10, "completion_tokens": 6, "total_tokens": 16}


async def test_a_chat_answer_comes_in_one_piece(server: Serving) -> None:
    body = (await server.chat("echo hello")).json()
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "hello"}
    assert body["choices"][0]["finish_reason"] == "stop"


async def test_max_tokens_ends_an_answer_with_length(server: Serving) -> None:
    for fields in ({"max_tokens": 3}, {"max_completion_tokens": 3}):
        body = (await server.chat("echo hello", **fields)).json()
        assert body["choices"][0]["message"]["content"] == "hel"
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"]["completion_tokens"] == 3


async def test_a_completion_has_sixteen_tokens_unless_asked_otherwise(server: Serving) -> None:
    body = (await server.complete("echo " + "x" * 40)).json()
    assert body["usage"]["completion_tokens"] == 16


async def test_a_stream_of_chat_chunks_ends_with_done(server: Serving) -> None:
    response = await server.chat("echo hey", stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    chunks = events(response.text)
    assert chunks.pop() == "[DONE]"
    assert all(isinstance(chunk, dict) and chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if isinstance(chunk, dict)]
    assert deltas == [{"role": "assistant", "content": "h"}, {"content": "e"}, {"content": "y"}, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if isinstance(chunk, dict)][-1] == "stop"


async def test_a_stream_counts_tokens_when_asked(server: Serving) -> None:
    response = await server.complete("echo hey", stream=True, stream_options={"include_usage": True})
    chunks = events(response.text)
    last = chunks[-2]
    assert isinstance(last, dict)
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 8, "completion_tokens": 4, "total_tokens": 12}


async def test_a_character_of_several_tokens_is_never_sent_in_halves(server: Serving) -> None:
    text = "né 🙂 ok"
    response = await server.complete("echo " + text, stream=True, max_tokens=50)
    pieces = [chunk["choices"][0]["text"] for chunk in events(response.text)[:-1] if isinstance(chunk, dict)]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert "🙂" in pieces


async def test_a_character_cut_off_by_max_tokens_shows_as_replacement(server: Serving) -> None:
    body = (await server.complete("echo n🙂", max_tokens=3)).json()
    assert body["choices"][0]["text"] == "n\ufffd"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_is_cut_off_wherever_chunks_end(server: Serving, *, stream: bool) -> None:
    response = await server.complete("echo one two three", stop=["zz", "two"], stream=stream)
    if stream:
        chunks = [chunk for chunk in events(response.text) if isinstance(chunk, dict)]
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
        finish = chunks[-1]["choices"][0]["finish_reason"]
    else:
        text, finish = response.json()["choices"][0]["text"], response.json()["choices"][0]["finish_reason"]
    assert (text, finish) == ("one ", "stop")


async def test_the_beginning_of_a_stop_string_is_given_when_it_does_not_come(server: Serving) -> None:
    body = (await server.complete("echo one tw", stop="two")).json()
    assert body["choices"][0]["text"] == "one tw"


async def test_token_ids_are_a_prompt_too(server: Serving) -> None:
    body = (
        await server.http.post("/v1/completions", json={"model": MODEL, "prompt": [65, 66], "max_tokens": 2})
    ).json()
    assert body["usage"]["prompt_tokens"] == 2


async def test_ignore_eos_goes_on_to_max_tokens(server: Serving) -> None:
    body = (await server.complete("echo ab", max_tokens=5, ignore_eos=True)).json()
    assert body["choices"][0]["text"] == "ababa"


async def test_neutral_values_of_fields_that_do_nothing_are_let_through(server: Serving) -> None:
    neutral = {"n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logprobs": False, "logit_bias": None}
    response = await server.chat("echo hey", **neutral, user="u", tools=[], response_format={"type": "text"})
    assert response.status_code == 200


async def test_null_is_the_same_as_leaving_a_field_out_at_every_level(server: Serving) -> None:
    part = {"type": "text", "text": "echo hey", "cache_control": None}
    messages = [
        {"role": "assistant", "content": "x", "refusal": None, "tool_calls": None, "audio": None},
        {"role": "user", "content": [part], "name": None},
    ]
    stream_options = {"include_usage": None, "include_obfuscation": None}
    response = await server.chat("", messages=messages, stream=True, stream_options=stream_options, tools=None)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 2, "n": 2}, "best_of"),
        ({"presence_penalty": False}, "presence_penalty"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 0}, "logprobs"),
        ({"top_logprobs": 0.5}, "top_logprobs"),
        ({"echo": False}, "echo"),
        ({"messages": [{"role": "user", "content": "x", "name": "Ann"}]}, "messages.0.name"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"banana": 1}, "banana"),
        ({"stream_options": {"banana": 1}, "stream": True}, "stream_options.banana"),
    ],
)
async def test_an_unsupported_field_is_refused_by_name(server: Serving, fields: dict[str, object], param: str) -> None:
    response = await server.chat("echo hey", **fields)
    error = error_of(response)
    assert (response.status_code, error["param"], error["code"]) == (400, param, "unsupported_parameter")
    assert param in str(error["message"])
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("logprobs", [0, 1, 5, False])
async def test_a_completion_with_logprobs_is_refused_even_for_none_but_the_chosen_token(
    server: Serving, logprobs: object
) -> None:
    response = await server.complete("echo hey", logprobs=logprobs)
    error = error_of(response)
    assert (response.status_code, error["param"], error["code"]) == (400, "logprobs", "unsupported_parameter")


async def test_neutral_values_of_a_completion_are_let_through(server: Serving) -> None:
    neutral = {"n": 1, "best_of": 1, "echo": False, "suffix": "", "logprobs": None, "frequency_penalty": 0.0}
    assert (await server.complete("echo hey", **neutral)).status_code == 200


async def test_a_developer_speaks_to_templates_as_the_system() -> None:
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hey"}]
    body = parse_body(ChatBody, {"model": MODEL, "messages": messages})
    assert [message.plain()["role"] for message in body.messages] == ["system", "user"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": True}, "n"),
        ({"priority": 11}, "priority"),
        ({"priority": -11}, "priority"),
        ({"priority": 0.5}, "priority"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": "x" * 129}, "cache_salt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, None),
        ({"stream_options": {"include_usage": True}}, None),
    ],
)
async def test_a_wrong_value_is_refused_by_name(server: Serving, fields: dict[str, object], param: str | None) -> None:
    response = await server.chat("echo hey", **fields)
    error = error_of(response)
    assert response.status_code == 400
    assert str(error["param"]).startswith(str(param))
    assert error["type"] == "invalid_request_error"


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"stop": 5}, "stop", "stop must be a string or a list of at most 16 strings, each of 1 to 1024 characters"),
        ({"stop": ["x", ""]}, "stop", "each of 1 to 1024 characters, got ['x', '']"),
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            "messages.0.content",
            "images, audio and files are not supported",
        ),
        ({"messages": [{"role": "user", "content": {"str": 1}}]}, "messages.0.content", "must be a string or a list"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "messages.0.content: Field required"),
    ],
)
async def test_a_value_of_none_of_the_accepted_forms_is_told_which_there_are(
    server: Serving, fields: dict[str, object], param: str, said: str
) -> None:
    error = error_of(await server.chat("echo hey", **fields))
    assert error["param"] == param
    assert said in str(error["message"])


@pytest.mark.parametrize("prompt", [5, [], [-1], ["one", "two"], [1, "x"], {"str": "x"}])
async def test_a_prompt_of_no_accepted_form_is_told_which_there_are(server: Serving, prompt: object) -> None:
    response = await server.http.post("/v1/completions", json={"model": MODEL, "prompt": prompt})
    error = error_of(response)
    assert error["param"] == "prompt"
    assert "prompt must be a string, a list of token ids or a list of one string" in str(error["message"])


async def test_an_unknown_model_is_not_found(server: Serving) -> None:
    response = await server.http.post("/v1/completions", json={"model": "gpt-4", "prompt": "x"})
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "'gpt-4' does not exist; this server serves 'echo'" in str(error["message"])


async def test_a_prompt_that_is_too_long_is_refused_with_its_numbers(server: Serving) -> None:
    response = await server.complete("x" * (MAX_MODEL_LEN - 10), max_tokens=11)
    error = error_of(response)
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert f"the prompt has {MAX_MODEL_LEN - 10} tokens and 11 were asked for" in str(error["message"])
    assert str(MAX_MODEL_LEN) in str(error["message"])
    response = await server.chat("x" * MAX_MODEL_LEN)
    assert error_of(response)["param"] == "messages"


async def test_an_empty_prompt_and_foreign_tokens_are_refused(server: Serving) -> None:
    assert (await server.complete("")).status_code == 400
    response = await server.http.post("/v1/completions", json={"model": MODEL, "prompt": [1, 5000]})
    assert "token 5000 is outside the vocabulary of 257" in str(error_of(response)["message"])


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[1]", b'"x"', b""])
async def test_a_body_that_is_no_json_object_is_refused(server: Serving, content: bytes) -> None:
    response = await server.http.post("/v1/completions", content=content)
    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"


async def test_a_body_that_is_too_large_is_refused(server: Serving) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 65536

    announced = await server.http.post("/v1/completions", content=b" " * (1 << 20) + b"{}")
    streamed = await server.http.post("/v1/completions", content=endless())
    assert [announced.status_code, streamed.status_code] == [413, 413]
    assert error_of(announced)["code"] == "request_too_large"


async def test_unknown_paths_and_methods_answer_in_the_same_shape(server: Serving) -> None:
    assert error_of(await server.http.get("/v1/embeddings"))["code"] == "not_found"
    assert (await server.http.get("/v1/completions")).status_code == 405


async def test_the_model_is_listed(server: Serving) -> None:
    listed = (await server.http.get("/v1/models")).json()
    assert [card["id"] for card in listed["data"]] == [MODEL]
    assert listed["data"][0]["max_model_len"] == MAX_MODEL_LEN
    assert (await server.http.get(f"/v1/models/{MODEL}")).json() == listed["data"][0]
    assert (await server.http.get("/v1/models/other")).status_code == 404


async def test_probes_are_green(server: Serving) -> None:
    assert (await server.http.get("/health")).json() == {"status": "ok", "phase": "serving", "in_flight": 0}
    assert (await server.http.get("/ready")).json() == {"status": "ready", "phase": "serving", "in_flight": 0}


async def test_a_violation_before_the_first_token_is_a_500(server: Serving) -> None:
    for stream in (False, True):
        response = await server.complete(FAIL, stream=stream)
        error = error_of(response)
        assert (response.status_code, error["code"]) == (500, "kv_integrity_violation")
        assert error["type"] == "server_error"
        assert response.headers["x-should-retry"] == "true"


async def test_a_violation_within_a_stream_is_an_event_and_there_is_no_done(server: Serving) -> None:
    response = await server.complete(FAIL_LATE, stream=True)
    assert response.status_code == 200
    *chunks, last = events(response.text)
    assert len(chunks) == 3
    assert isinstance(last, dict)
    assert last["error"]["code"] == "kv_integrity_violation"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_frees_its_request(server: Serving, *, stream: bool) -> None:
    before = await server.metric('octavo_requests_finished_total{reason="cancelled"}')
    request = asyncio.create_task(server.complete(HOLD, stream=stream))

    async def runs() -> bool:
        return await server.metric("octavo_requests_running") == 1

    async def gone() -> bool:
        return await server.metric("octavo_requests_running") == 0

    await until(runs)
    request.cancel()
    await until(gone)
    assert await server.metric('octavo_requests_finished_total{reason="cancelled"}') == before + 1


async def test_a_client_that_hangs_up_within_a_stream_frees_its_request(server: Serving) -> None:
    body = {"model": MODEL, "prompt": "echo " + "ab" * 40, "max_tokens": 150, "stream": True, "ignore_eos": True}
    async with server.http.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line:
                break

    async def gone() -> bool:
        return await server.metric("octavo_requests_running") == 0

    await until(gone)


async def test_requests_are_served_side_by_side(server: Serving) -> None:
    answers = await asyncio.gather(*(server.complete(f"echo {index:03}") for index in range(8)))
    assert [answer.json()["choices"][0]["text"] for answer in answers] == [f"{index:03}" for index in range(8)]


async def test_metrics_carry_the_contract_and_the_names_that_routers_read(server: Serving) -> None:
    text = (await server.http.get("/metrics")).text
    for sample in (
        "octavo_kv_tokens_capacity 4096.0",
        "octavo_batch_slots 4.0",
        'octavo_kernel_info{implementation="echo",op="paged_attention"} 1.0',
        'octavo_memory_planned_bytes{part="kv"} 100.0',
        'octavo_memory_measured_bytes{part="kv"} 101.0',
        'octavo_kv_integrity_violations_total{reason="tag"} 2.0',
        'octavo_kv_integrity_violations_total{reason="binding"} 0.0',
        'vllm:num_requests_running{model_name="echo"} 0.0',
        'vllm:num_requests_waiting{model_name="echo"} 0.0',
        'vllm:kv_cache_usage_perc{model_name="echo"} 0.0',
        'vllm:cache_config_info{block_size="64",model_name="echo",num_gpu_blocks="64"} 1.0',
    ):
        assert sample in text.splitlines()
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    assert all(first != second for first, second in pairwise(names))
