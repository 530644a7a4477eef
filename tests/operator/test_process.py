"""The process around the loop: options, probes, events, logs."""

from __future__ import annotations

import json
import logging
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any

import pytest

from octavo_operator.cluster.errors import Unreachable
from octavo_operator.cluster.events import REPEAT_SECONDS, Announcement, EventRecorder
from octavo_operator.cluster.kinds import EVENTS
from octavo_operator.logs import JsonFormatter, TextFormatter
from octavo_operator.main import parse_options
from octavo_operator.probes import STALL_SECONDS, Health, serve_probes
from octavo_operator.watches import watch_settings
from tests.operator.fake_api import FakeApi, Write


def test_options_say_where_to_look_and_which_image_to_run() -> None:
    options = parse_options(["--namespace", "a", "--namespace", "b", "--namespace", "a", "--runtime-image", "r:1"])
    assert options.namespaces == ("a", "b")
    assert options.runtime_image == "r:1"
    assert parse_options(["--all-namespaces", "--runtime-image", "r:1"]).namespaces is None


@pytest.mark.parametrize(
    "argv",
    [
        ["--runtime-image", "r:1"],
        ["--all-namespaces"],
        ["--all-namespaces", "--namespace", "a", "--runtime-image", "r:1"],
        ["--all-namespaces", "--runtime-image", "r:1", "--workers", "0"],
        ["--all-namespaces", "--runtime-image", "r:1", "--resync-seconds", "0"],
    ],
)
def test_wrong_options_end_with_a_usage_message(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse_options(argv)
    assert stop.value.code == 2
    assert "usage: octavo-operator" in capsys.readouterr().err


def get(server: ThreadingHTTPServer, path: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{server.server_port}{path}"
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def health(now: list[float]) -> Health:
    return Health(lambda: now[0])


@pytest.fixture
def server(health: Health) -> Iterator[ThreadingHTTPServer]:
    running = serve_probes(health, 0, "127.0.0.1")
    yield running
    running.shutdown()
    running.server_close()


def test_readiness_waits_for_the_caches_and_liveness_does_not(server: ThreadingHTTPServer, health: Health) -> None:
    assert get(server, "/readyz")[0] == 503
    assert get(server, "/healthz") == (200, "ok\n")
    health.set_ready(True)
    assert get(server, "/readyz") == (200, "ok\n")
    assert get(server, "/nothing")[0] == 404


def test_a_loop_that_does_not_come_round_is_not_alive(
    server: ThreadingHTTPServer, health: Health, now: list[float]
) -> None:
    now[0] += STALL_SECONDS + 1
    status, text = get(server, "/healthz")
    assert status == 503
    assert "silent" in text
    health.beat()
    assert get(server, "/healthz")[0] == 200


MODEL: dict[str, Any] = {"metadata": {"name": "tiny", "namespace": "team", "uid": "u", "resourceVersion": "3"}}
NO_FIT = Announcement("NoFit", "lacks 3 bytes", "Planned", warning=True)


async def test_an_event_says_what_and_about_whom_and_is_not_repeated_at_once(now: list[float]) -> None:
    api = FakeApi()
    recorder = EventRecorder(api, "pod-1", lambda: now[0])
    await recorder.publish(MODEL, NO_FIT)
    await recorder.publish(MODEL, NO_FIT)
    (event,) = api.of(EVENTS)
    assert (event["type"], event["reason"], event["action"], event["note"]) == (
        "Warning",
        "NoFit",
        "Planned",
        "lacks 3 bytes",
    )
    assert event["regarding"]["uid"] == "u"
    now[0] += REPEAT_SECONDS
    await recorder.publish(MODEL, NO_FIT)
    assert len(api.of(EVENTS)) == 2


async def test_a_lost_event_is_no_failure() -> None:
    api = FakeApi()

    def refuse(_write: Write) -> None:
        raise Unreachable(0, "Unreachable", "cut")

    api.before_write = refuse
    await EventRecorder(api, "pod-1", lambda: 0.0).publish(MODEL, NO_FIT)
    assert api.of(EVENTS) == []


def test_logs_have_a_constant_message_and_fields() -> None:
    record = logging.makeLogRecord({"msg": "planned", "levelname": "INFO", "created": 0.0, "model": "team/tiny"})
    assert TextFormatter().format(record) == "1970-01-01T00:00:00.000000Z INFO planned model=team/tiny"
    document = json.loads(JsonFormatter().format(record))
    assert (document["message"], document["model"]) == ("planned", "team/tiny")


def test_kopf_watches_with_time_limits_and_keeps_no_state_of_its_own() -> None:
    settings = watch_settings()
    assert settings.peering.standalone
    assert settings.scanning.disabled
    assert not settings.posting.enabled
    assert settings.watching.client_timeout is not None
    assert settings.networking.request_timeout is not None
