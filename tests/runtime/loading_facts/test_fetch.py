"""`octavo fetch` leaves a directory that is whole or says why not, and never does the work twice."""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.constants
import pytest

from octavo_runtime.cli.fetch import Progress
from octavo_runtime.cli.main import main
from octavo_runtime.contract.refused import Refused
from octavo_runtime.contract.termination import ExitCode
from octavo_runtime.loading import download
from octavo_runtime.loading.download import LOCK, MARKER, completed, exclusive, wanted_files
from octavo_runtime.loading.facts import read_facts
from octavo_runtime.loading.files import LocalFiles
from octavo_runtime.loading.hub import HubFiles, HubSource
from tests.checkpoints import write_checkpoint
from tests.hub_server import HubServer
from tests.published_models import gqa_config, gqa_tensors

CONFIG = gqa_config(
    "Qwen3MoeForCausalLM", num_hidden_layers=2, vocab_size=1024, hidden_size=256, num_experts=8, num_experts_per_tok=2
)
SOURCE = HubSource("test/model")
WEIGHTS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
TEMPTATIONS = ("pytorch_model.bin", "modeling_custom.py", "consolidated.safetensors", "training_args.bin")
KEPT = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    directory = write_checkpoint(tmp_path / "repository", CONFIG, gqa_tensors(CONFIG), shards=2)
    for name in (*KEPT, *TEMPTATIONS):
        (directory / name).write_text("{}")
    return directory


@pytest.fixture
def hub(repository: Path) -> Iterator[HubServer]:
    with HubServer(repository).running() as server:
        yield server


@pytest.fixture
def target(tmp_path: Path) -> Path:
    directory = tmp_path / "target"
    directory.mkdir()
    return directory


def _download(hub: HubServer, target: Path) -> int:
    files = HubFiles.open(SOURCE, endpoint=hub.endpoint)
    received: list[int] = []
    download.download(files, wanted_files(files), target, received.append)
    return sum(received)


@dataclass(frozen=True)
class Ran:
    """What a command answered."""

    code: int
    out: str
    err: str


Octavo = Callable[..., Ran]


@pytest.fixture
def octavo(hub: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Octavo:
    """The command line in this process, with HF_ENDPOINT as the hub's client has read it."""
    constants = huggingface_hub.constants
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = main(arguments)
        output = capsys.readouterr()
        return Ran(code, output.out, output.err)

    return run


def test_the_copy_is_the_checkpoint_without_pickles_code_and_doubles(
    hub: HubServer, repository: Path, target: Path
) -> None:
    received = _download(hub, target)

    names = {path.name for path in target.iterdir() if path.is_file() and not path.name.startswith(".")}
    assert names == {"config.json", "model.safetensors.index.json", *WEIGHTS, *KEPT}
    assert all((target / name).read_bytes() == (repository / name).read_bytes() for name in names)
    assert received == sum((repository / name).stat().st_size for name in names)
    assert read_facts(target) == read_facts(repository)


def test_the_marker_is_written_last_and_names_the_commit(hub: HubServer, target: Path) -> None:
    assert completed(target) is None
    _download(hub, target)

    marker = completed(target)
    assert marker is not None
    assert (marker.repo, marker.revision) == ("test/model", hub.commit)
    assert not list(target.glob(f"{MARKER}.*"))


def test_a_marker_over_a_damaged_file_counts_for_nothing(hub: HubServer, target: Path) -> None:
    _download(hub, target)
    (target / WEIGHTS[0]).write_bytes(b"short")
    assert completed(target) is None

    _download(hub, target)
    assert completed(target) is not None


def test_a_cut_connection_is_resumed(hub: HubServer, target: Path) -> None:
    hub.behaviour.cut_after_bytes = 256 * 1024
    _download(hub, target)

    assert completed(target) is not None
    assert hub.cuts == 1
    assert any(answer.range for answer in hub.answered)


def test_a_truncated_checkpoint_on_the_hub_leaves_no_marker(hub: HubServer, repository: Path, target: Path) -> None:
    content = (repository / WEIGHTS[1]).read_bytes()
    (repository / WEIGHTS[1]).write_bytes(content[:-100])

    with pytest.raises(Refused) as refusal:
        _download(hub, target)

    assert refusal.value.reason == "CheckpointCorrupt"
    assert WEIGHTS[1] in refusal.value.message
    assert completed(target) is None


def test_a_volume_that_is_too_small_is_refused_before_anything_is_copied(
    hub: HubServer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = HubFiles.open(SOURCE, endpoint=hub.endpoint)
    names = wanted_files(files)
    download.check_space(target, files, names)

    monkeypatch.setattr(download, "SPACE_MARGIN_BYTES", 2**60)
    with pytest.raises(Refused, match="GiB free") as refusal:
        download.check_space(target, files, names)
    assert refusal.value.reason == "VolumeTooSmall"


def test_only_what_is_already_there_of_the_wanted_files_counts_as_space_that_is_not_needed(
    hub: HubServer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = HubFiles.open(SOURCE, endpoint=hub.endpoint)
    names = wanted_files(files)
    needed = sum(files.sizes()[name] for name in names) + download.SPACE_MARGIN_BYTES

    def fits(free: int) -> bool:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
        try:
            download.check_space(target, files, names)
        except Refused:
            return False
        return True

    def at_the_limit(bytes_needed: int) -> bool:
        return fits(bytes_needed) and not fits(bytes_needed - 1)

    assert at_the_limit(needed)
    (target / "somebody's.bin").write_bytes(b"x" * 100_000)
    assert at_the_limit(needed)
    size = files.sizes()[WEIGHTS[0]]
    (target / WEIGHTS[0]).write_bytes(b"x" * (size + 5000))
    assert at_the_limit(needed - size)
    parts = target / ".cache" / "huggingface" / "download"
    parts.mkdir(parents=True)
    (parts / "key.etag.incomplete").write_bytes(b"x" * 1000)
    assert at_the_limit(needed - size - 1000)


def test_a_repository_without_a_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(Refused) as refusal:
        wanted_files(LocalFiles(tmp_path))
    assert refusal.value.reason == "ConfigMissing"


def test_fetching_again_asks_the_hub_for_nothing_but_the_commit(hub: HubServer, target: Path, octavo: Octavo) -> None:
    first = octavo("fetch", "hf://test/model", str(target))
    assert first.code == ExitCode.OK, first.err
    assert first.err == ""
    assert "fetched " in first.out
    assert "\x1b" not in first.out
    assert "\r" not in first.out

    hub.answered.clear()
    again = octavo("fetch", "hf://test/model", str(target))
    assert "already holds" in again.out
    assert [answer.path for answer in hub.answered] == ["/api/models/test/model"]

    hub.answered.clear()
    pinned = octavo("fetch", f"hf://test/model@{hub.commit}", str(target))
    assert "already holds" in pinned.out
    assert hub.answered == []


def test_a_directory_with_another_revision_is_left_alone(hub: HubServer, target: Path, octavo: Octavo) -> None:
    _download(hub, target)
    marker = json.loads((target / MARKER).read_text())
    (target / MARKER).write_text(json.dumps(marker | {"revision": "b" * 40}))

    result = octavo("fetch", "hf://test/model", str(target))

    assert result.code == ExitCode.REFUSED
    assert "DirectoryInUse" in result.err
    assert "a directory of its own" in result.err


def test_a_directory_that_cannot_be_made_is_refused_in_one_line(tmp_path: Path, octavo: Octavo) -> None:
    (tmp_path / "file").touch()
    result = octavo("fetch", "hf://test/model", str(tmp_path / "file" / "below"))

    assert result.code == ExitCode.REFUSED
    assert result.err.startswith("octavo fetch: DirectoryUnusable: ")
    assert result.err.count("\n") == 1


def test_inspecting_the_hub_from_the_command_line_names_the_commit(hub: HubServer, octavo: Octavo) -> None:
    result = octavo("inspect", "--json", "hf://test/model")
    assert result.code == ExitCode.OK, result.err
    assert json.loads(result.out)["revision"] == hub.commit


def test_as_a_process_it_reads_the_endpoint_from_the_environment_and_sends_no_telemetry(
    hub: HubServer, target: Path
) -> None:
    subprocess.run(
        [sys.executable, "-m", "octavo_runtime.cli.main", "fetch", "hf://test/model", str(target)],
        env=os.environ | {"HF_ENDPOINT": hub.endpoint},
        timeout=120,
        check=True,
    )
    assert completed(target) is not None
    assert {answer.path.split("/test/model")[0] for answer in hub.answered} == {"/api/models", "", *_storage(hub)}


def _storage(hub: HubServer) -> set[str]:
    return {f"/cdn/{digest}" for name, digest in hub.sha256.items() if name in WEIGHTS}


def test_two_fetchers_take_turns(target: Path) -> None:
    waits: list[float] = []
    with (target / LOCK).open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def release_at_the_second_poll(_: float) -> None:
            if len(waits) == 2:
                fcntl.flock(other, fcntl.LOCK_UN)

        with exclusive(target, on_wait=waits.append, sleep=release_at_the_second_poll):
            assert len(waits) == 2


def test_a_lock_that_is_never_released_ends_in_a_retryable_refusal(target: Path) -> None:
    now = iter(range(0, 100_000, 3600))
    with (target / LOCK).open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with (
            pytest.raises(Refused) as refusal,
            exclusive(target, on_wait=lambda _: None, sleep=lambda _: None, clock=lambda: float(next(now))),
        ):
            pass
    assert (refusal.value.reason, refusal.value.retryable) == ("DirectoryInUse", True)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_every_ten_seconds_with_share_rate_and_time_left() -> None:
    now = 0.0
    stream = io.StringIO()
    progress = Progress(100 * 2**30, stream, clock=lambda: now)
    for _ in range(50):
        now += 0.5
        progress.add(2**29)
    progress.finish()

    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("512.0 MiB of 100.0 GiB (0%)")
    assert lines[1:] == [
        "10.5 GiB of 100.0 GiB (10%), 1.0 GiB/s, about 90 s left",
        "20.5 GiB of 100.0 GiB (20%), 1.0 GiB/s, about 80 s left",
        "fetched 25.0 GiB in 25.0 s (1.0 GiB/s)",
    ]


def test_a_terminal_gets_one_line_that_is_redrawn() -> None:
    now = 0.0
    stream = Terminal()
    progress = Progress(2**30, stream, clock=lambda: now)
    for _ in range(3):
        now += 1.0
        progress.add(2**28)
    progress.finish()

    assert stream.getvalue().count("\r") == 4
    assert stream.getvalue().count("\n") == 1
