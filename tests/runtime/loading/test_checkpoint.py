"""Every tensor is accounted for, and a hostile file is refused by name, at once, without a traceback."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from octavo_runtime.contract.refused import Refused
from octavo_runtime.loading.checkpoint import OPEN_FILES, OpenCheckpoint
from tests.runtime.qwen3_moe_files import write

CONFIG = {"architectures": ["Qwen3MoeForCausalLM"]}


def two_tensors() -> dict[str, torch.Tensor]:
    return {
        "a.weight": torch.arange(6, dtype=torch.bfloat16).view(2, 3),
        "b.weight": torch.full((4,), 7.0, dtype=torch.bfloat16),
    }


@contextmanager
def refused(reason: str, *words: str) -> Iterator[None]:
    """The block is refused for `reason` with every one of `words` in the message, in under a second of work."""
    before = time.process_time()
    with pytest.raises(Refused) as caught:
        yield
    assert caught.value.reason == reason
    for word in words:
        assert word in caught.value.message
    assert time.process_time() - before < 1


@pytest.mark.parametrize("shards", [1, 2])
def test_tensors_come_back_as_they_were_written(tmp_path: Path, shards: int) -> None:
    write(tmp_path, CONFIG, two_tensors(), shards=shards)
    with OpenCheckpoint(tmp_path) as checkpoint:
        for name, tensor in two_tensors().items():
            assert torch.equal(checkpoint.take(name, tensor.shape), tensor)
        checkpoint.finish([])
        assert checkpoint.bytes_read == checkpoint.bytes_total == 20


def test_more_shards_than_open_files_are_read(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.full((2,), float(i), dtype=torch.bfloat16) for i in range(2 * OPEN_FILES)}
    write(tmp_path, CONFIG, tensors, shards=2 * OPEN_FILES)
    with OpenCheckpoint(tmp_path) as checkpoint:
        for _ in range(2):
            assert [float(checkpoint.take(name, (2,))[0]) for name in tensors] == list(range(2 * OPEN_FILES))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_wider_formats_are_rounded_to_nearest_even(tmp_path: Path, dtype: torch.dtype) -> None:
    # 1 + 2**-8 lies halfway between two bfloat16 values, of which 1.0 is even.
    values = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, -2.5], dtype=dtype)
    write(tmp_path, CONFIG, {"a": values})
    with OpenCheckpoint(tmp_path) as checkpoint:
        assert checkpoint.take("a", (3,)).tolist() == [1.0, 1 + 4 * 2.0**-8, -2.5]


def test_a_scalar_and_an_empty_tensor_are_read(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, {"one": torch.tensor(3.0).bfloat16(), "none": torch.zeros((0, 4)).bfloat16()})
    with OpenCheckpoint(tmp_path) as checkpoint:
        assert float(checkpoint.take("one", ())) == 3.0
        assert checkpoint.take("none", (0, 4)).shape == (0, 4)


def test_progress_is_told_the_bytes(tmp_path: Path) -> None:
    told: list[int] = []
    write(tmp_path, CONFIG, two_tensors())
    with OpenCheckpoint(tmp_path, told.append) as checkpoint:
        checkpoint.take("a.weight", (2, 3))
        checkpoint.take("b.weight", (4,))
    assert told == [12, 20]


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, two_tensors())
    with OpenCheckpoint(tmp_path) as checkpoint, refused("TensorMissing", "c.weight", str(tmp_path)):
        checkpoint.take("c.weight", (1,))


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, two_tensors())
    with (
        OpenCheckpoint(tmp_path) as checkpoint,
        refused("TensorShapeWrong", "model.safetensors", "a.weight", "[2, 3]", "[3, 2]"),
    ):
        checkpoint.take("a.weight", (3, 2))


def test_a_format_that_is_not_plain_is_named(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, {"a": torch.zeros(4, dtype=torch.int32)})
    with OpenCheckpoint(tmp_path) as checkpoint, refused("WeightsUnsupported", "model.safetensors", "a is I32"):
        checkpoint.take("a", (4,))


def test_a_tensor_that_nobody_asked_for_is_named(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, two_tensors())
    with OpenCheckpoint(tmp_path) as checkpoint:
        checkpoint.take("a.weight", (2, 3))
        with refused("TensorUnexpected", "model.safetensors", "b.weight"):
            checkpoint.finish([r"c\.weight"])
        checkpoint.finish([r"b\.weight"])


def test_a_rule_matches_whole_names_only(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, {"a.weight": torch.zeros(1), "a.weight_scale": torch.zeros(1)})
    with OpenCheckpoint(tmp_path) as checkpoint, refused("TensorUnexpected", "a.weight_scale"):
        checkpoint.finish([r"a\.weight"])


def test_a_truncated_file_is_refused_before_any_weight_is_read(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, two_tensors())
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with refused("CheckpointCorrupt", "model.safetensors", "truncated"):
        OpenCheckpoint(tmp_path)


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, two_tensors())
    file = tmp_path / "model.safetensors"
    with OpenCheckpoint(tmp_path) as checkpoint:
        file.write_bytes(file.read_bytes()[:-3])
        with refused("CheckpointCorrupt", "model.safetensors", "truncated while it was read"):
            checkpoint.take("a.weight", (2, 3))
            checkpoint.take("b.weight", (4,))


def test_a_file_that_vanishes_is_refused(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, two_tensors())
    with OpenCheckpoint(tmp_path) as checkpoint:
        (tmp_path / "model.safetensors").unlink()
        with refused("CheckpointUnreadable", "model.safetensors"):
            checkpoint.take("a.weight", (2, 3))


def test_a_header_of_ten_gigabytes_is_refused_without_being_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write((10 * 10**9).to_bytes(8, "little"))
        file.truncate(11 * 10**9)
    with refused("CheckpointCorrupt", "model.safetensors", "header of 10000000000 bytes"):
        OpenCheckpoint(tmp_path)


def test_an_index_that_names_a_missing_shard_is_refused(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, two_tensors(), shards=2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with refused("ShardMissing", "model-00002-of-00002.safetensors"):
        OpenCheckpoint(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    write(tmp_path, CONFIG, two_tensors(), shards=2)
    first, second = sorted(tmp_path.glob("*.safetensors"))
    second.write_bytes(first.read_bytes())
    with refused("CheckpointCorrupt", first.name, second.name, "a.weight"):
        OpenCheckpoint(tmp_path)


def test_a_directory_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with refused("SourceNotFound", str(tmp_path / "nothing")):
        OpenCheckpoint(tmp_path / "nothing")
