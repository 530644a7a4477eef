"""A hub is asked with few and small requests, and each of its refusals becomes one of ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo_runtime.contract.refused import Refused
from octavo_runtime.loading.facts import read_checkpoint, read_facts
from octavo_runtime.loading.hub import HubFiles, HubSource
from tests.checkpoints import write_checkpoint
from tests.hub_server import HubServer
from tests.published_models import gqa_config, gqa_tensors

CONFIG = gqa_config(
    "Qwen3MoeForCausalLM", num_hidden_layers=2, vocab_size=1024, hidden_size=512, num_experts=8, num_experts_per_tok=2
)
SOURCE = HubSource("test/model")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "repository", CONFIG, gqa_tensors(CONFIG), shards=2)


@pytest.fixture
def hub(directory: Path) -> Iterator[HubServer]:
    with HubServer(directory).running() as server:
        yield server


class Pauses:
    """A sleep that notes how long it was asked to sleep and does not."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def _open(hub: HubServer, source: HubSource = SOURCE, pauses: Pauses | None = None) -> HubFiles:
    return HubFiles.open(source, endpoint=hub.endpoint, sleep=pauses or Pauses())


def _refusal(hub: HubServer, source: HubSource = SOURCE, pauses: Pauses | None = None) -> Refused:
    with pytest.raises(Refused) as refusal:
        _open(hub, source, pauses)
    return refusal.value


@pytest.mark.parametrize(
    ("text", "repo", "revision"),
    [
        ("hf://Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B", None),
        ("hf://org/m@main", "org/m", "main"),
        ("hf://org/m@refs/pr/3", "org/m", "refs/pr/3"),
        ("hf://gpt2@" + "a" * 40, "gpt2", "a" * 40),
    ],
)
def test_addresses_are_taken_apart_and_put_together(text: str, repo: str, revision: str | None) -> None:
    source = HubSource.parse(text)
    assert source == HubSource(repo, revision)
    assert str(source) == text


@pytest.mark.parametrize(
    "text", ["hf://", "hf://a/b/c", "hf://a b", "hf:///x", "hf://a/b@", "http://a/b", "hf://a/b@x y", "hf://../x"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="no hub address") as refusal:
        HubSource.parse(text)
    assert refusal.value.reason == "SourceInvalid"


def test_facts_from_the_hub_are_those_of_the_files_with_the_commit_for_a_revision(
    hub: HubServer, directory: Path
) -> None:
    files = _open(hub)
    remote = read_checkpoint(files, files.commit).facts

    assert remote.revision == hub.commit
    assert remote.model_copy(update={"revision": ""}) == read_facts(directory).model_copy(update={"revision": ""})


def test_only_headers_are_read_never_the_weights(hub: HubServer, directory: Path) -> None:
    files = _open(hub)
    facts = read_checkpoint(files, files.commit).facts

    sent = sum(answer.body_bytes for answer in hub.answered)
    assert facts.checkpoint_bytes > 30_000_000
    assert sent < 1_000_000
    assert all(a.range for a in hub.answered if "/resolve/" in a.path)


def test_a_server_that_ignores_ranges_is_cut_off(hub: HubServer, directory: Path) -> None:
    hub.behaviour.ignore_ranges = True
    files = _open(hub)
    name = "model-00001-of-00002.safetensors"

    assert files.read(name, 8, 100) == (directory / name).read_bytes()[8:108]


def test_a_repository_that_does_not_exist_is_named(hub: HubServer) -> None:
    refusal = _refusal(hub, HubSource("test/other"))
    assert refusal.reason == "SourceNotFound"
    assert "test/other" in refusal.message
    assert not refusal.retryable


def test_a_revision_that_does_not_exist_is_named(hub: HubServer) -> None:
    refusal = _refusal(hub, HubSource("test/model", "v2"))
    assert refusal.reason == "SourceNotFound"
    assert "no revision v2" in refusal.message


def test_a_private_repository_without_a_token_says_where_the_token_goes(hub: HubServer) -> None:
    hub.behaviour.token = "hf_secret"
    refusal = _refusal(hub)
    assert refusal.reason == "SourceNotFound"
    assert "without a token" in refusal.message
    assert "spec.model.secretRef" in refusal.message


def test_a_token_opens_a_private_repository_and_is_not_sent_to_the_storage_behind_it(
    hub: HubServer, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.behaviour.token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    files = _open(hub)

    assert read_checkpoint(files, files.commit).facts.layers == 2


def test_a_gated_repository_is_forbidden(hub: HubServer) -> None:
    hub.behaviour.gated = True
    refusal = _refusal(hub)
    assert refusal.reason == "SourceForbidden"
    assert "secretRef" in refusal.message


@pytest.mark.parametrize("status", [401, 403])
def test_a_token_that_is_turned_away_is_forbidden_or_unknown(hub: HubServer, status: int) -> None:
    hub.behaviour.failures = [status]
    assert _refusal(hub).reason in {"SourceForbidden", "SourceNotFound"}


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_passing_failure_is_waited_out(hub: HubServer, status: int) -> None:
    hub.behaviour.failures = [status, status]
    pauses = Pauses()

    assert _open(hub, pauses=pauses).commit == hub.commit
    assert len(pauses.seconds) == 2
    assert 1.0 <= pauses.seconds[0] <= 1.5
    assert 2.0 <= pauses.seconds[1] <= 3.0


def test_the_server_says_how_long_to_wait_within_reason(hub: HubServer) -> None:
    hub.behaviour.failures = [429, 429]
    hub.behaviour.retry_after = "7"
    pauses = Pauses()
    _open(hub, pauses=pauses)
    assert pauses.seconds == [7.0, 7.0]

    hub.behaviour.failures = [429]
    hub.behaviour.retry_after = "86400"
    pauses = Pauses()
    _open(hub, pauses=pauses)
    assert pauses.seconds == [60.0]


def test_a_lasting_failure_ends_in_a_retryable_refusal_after_five_attempts(hub: HubServer) -> None:
    hub.behaviour.failures = [503] * 20
    pauses = Pauses()
    refusal = _refusal(hub, pauses=pauses)

    assert (refusal.reason, refusal.retryable) == ("SourceUnreachable", True)
    assert len(pauses.seconds) == 4
    assert len(hub.answered) == 5


def test_a_web_page_in_place_of_an_answer_is_unreachable_and_points_at_the_endpoint(hub: HubServer) -> None:
    hub.behaviour.not_json = True
    refusal = _refusal(hub)
    assert refusal.reason == "SourceUnreachable"
    assert "HF_ENDPOINT" in refusal.message


def test_nobody_listening_is_a_retryable_refusal() -> None:
    with pytest.raises(Refused) as refusal:
        HubFiles.open(SOURCE, endpoint="http://127.0.0.1:9", sleep=Pauses())
    assert (refusal.value.reason, refusal.value.retryable) == ("SourceUnreachable", True)
