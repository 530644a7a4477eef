"""Safetensors headers are hostile input: each damage is named, and nothing large is allocated on its word."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from octavo_runtime.contract.refused import Refused
from octavo_runtime.loading.files import LocalFiles
from octavo_runtime.loading.headers import HEADER_LIMIT_BYTES, find_weights, parse_header, read_header
from tests.checkpoints import header_of, write_safetensors

NAME = "model.safetensors"


def _read(directory: Path) -> None:
    read_header(LocalFiles(directory), NAME)


def _refusal(directory: Path) -> Refused:
    with pytest.raises(Refused) as refusal:
        _read(directory)
    assert refusal.value.reason == "CheckpointCorrupt"
    assert refusal.value.message.startswith(NAME)
    return refusal.value


def test_a_file_written_by_the_safetensors_library_is_read(tmp_path: Path) -> None:
    tensors = {
        "a": torch.zeros(3, 5, dtype=torch.bfloat16),
        "b": torch.zeros(7, dtype=torch.float8_e4m3fn),
        "c": torch.zeros((), dtype=torch.float32),
        "empty": torch.zeros(0, 4, dtype=torch.int32),
    }
    save_file(tensors, tmp_path / NAME, metadata={"format": "pt"})

    read = {t.name: (t.dtype, t.shape, t.storage_bytes) for t in read_header(LocalFiles(tmp_path), NAME).tensors}

    assert read == {
        "a": ("BF16", (3, 5), 30),
        "b": ("F8_E4M3", (7,), 7),
        "c": ("F32", (), 4),
        "empty": ("I32", (0, 4), 0),
    }


def test_a_truncated_file_is_named_with_the_tensor_that_is_cut(tmp_path: Path) -> None:
    write_safetensors(tmp_path / NAME, *header_of([("first", "BF16", (8, 8)), ("last", "BF16", (8, 8))]))
    whole = (tmp_path / NAME).stat().st_size
    with (tmp_path / NAME).open("r+b") as file:
        file.truncate(whole - 100)

    message = _refusal(tmp_path).message

    assert "truncated" in message
    assert "last ends at byte 256" in message


@given(cut=st.integers(min_value=0, max_value=400))
def test_no_prefix_of_a_file_is_taken_for_a_whole_one(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("cut")
    write_safetensors(directory / NAME, *header_of([("first", "BF16", (8, 8)), ("last", "BF16", (8, 8))]))
    content = (directory / NAME).read_bytes()
    (directory / NAME).write_bytes(content[: min(cut, len(content) - 1)])

    assert "truncated" in _refusal(directory).message


@given(raw=st.binary(max_size=300))
def test_no_bytes_whatever_lead_to_anything_but_a_refusal_or_tensors(raw: bytes) -> None:
    with suppress(Refused):
        parse_header(raw, 100, NAME)


def _header(raw: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(raw)) + raw + data


def _tensor(**fields: object) -> bytes:
    entry = {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]} | fields
    return _header(json.dumps({"w": entry}).encode(), b"\0" * 8)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        pytest.param(pickle.dumps({"w": 1}, protocol=2), "pickled PyTorch file", id="an old pickle"),
        pytest.param(b"PK\x03\x04" + b"\0" * 60, "pickled PyTorch file", id="a zipped pickle"),
        pytest.param(b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer", id="an LFS pointer"),
        pytest.param(b"", "truncated: 0 bytes", id="an empty file"),
        pytest.param(struct.pack("<Q", HEADER_LIMIT_BYTES + 1) + b"{", "the format allows", id="a giant header"),
        pytest.param(struct.pack("<Q", 5000) + b"{}", "truncated: the header alone", id="a header past the end"),
        pytest.param(_header(b"[]"), "no JSON object", id="a list"),
        pytest.param(_header(b"{" * 5000), "not JSON", id="nested without end"),
        pytest.param(_header(b"[" * 100_000), "not JSON", id="nested lists without end"),
        pytest.param(_header(b'{"w": 3}'), "no dtype, shape and data_offsets", id="a number for a tensor"),
        pytest.param(_header(b'{"w": {"dtype": "BF16"}}'), "no dtype, shape and data_offsets", id="half a tensor"),
        pytest.param(_tensor(dtype="Q3"), "unknown dtype 'Q3'", id="an unknown dtype"),
        pytest.param(_tensor(dtype=["BF16"]), "unknown dtype", id="a list for a dtype"),
        pytest.param(_tensor(shape=[-2, -2]), "impossible shape [-2, -2]", id="a negative shape"),
        pytest.param(_tensor(shape=[2.5, 2]), "impossible shape", id="a fractional shape"),
        pytest.param(_tensor(shape={}), "impossible shape", id="an object for a shape"),
        pytest.param(_tensor(shape=[True, 4]), "impossible shape", id="a boolean in a shape"),
        pytest.param(_tensor(shape=[2, 3]), "needs 12 bytes", id="a shape that does not fit the offsets"),
        pytest.param(_tensor(shape=[2**62, 2**62]), "needs", id="a shape that overflows"),
        pytest.param(_tensor(data_offsets=[-8, 0]), "offsets are -8 and 0", id="negative offsets"),
        pytest.param(_tensor(data_offsets=[8, 0]), "offsets are 8 and 0", id="offsets that run backwards"),
        pytest.param(_tensor(data_offsets=["0", "8"]), "offsets are '0' and '8'", id="offsets that are text"),
        pytest.param(_tensor() + b"\0", "1 bytes follow the last tensor", id="bytes left over"),
        pytest.param(_tensor(data_offsets=[0, 8])[:-1], "truncated: w ends", id="a byte short"),
    ],
)
def test_each_damage_is_named(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert what in _refusal(tmp_path).message


def test_a_header_whose_length_looks_like_a_pickle_is_read(tmp_path: Path) -> None:
    header = {"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    raw = json.dumps(header).encode()
    (tmp_path / NAME).write_bytes(_header(raw + b" " * (0x0280 - len(raw)), b"\0"))
    _read(tmp_path)


@pytest.mark.parametrize(
    ("offsets", "what"),
    [
        pytest.param(([0, 8], [4, 12]), "begins at 4", id="tensors that overlap"),
        pytest.param(([0, 8], [10, 18]), "begins at 10", id="a gap between tensors"),
        pytest.param(([4, 12], [12, 20]), "come before the first tensor", id="a gap before the first"),
    ],
)
def test_tensors_tile_the_data(tmp_path: Path, offsets: tuple[list[int], list[int]], what: str) -> None:
    header = {
        name: {"dtype": "BF16", "shape": [4], "data_offsets": span} for name, span in zip("ab", offsets, strict=True)
    }
    write_safetensors(tmp_path / NAME, header, offsets[1][1])
    assert what in _refusal(tmp_path).message


def test_a_header_longer_than_the_first_read_is_read_whole(tmp_path: Path) -> None:
    tensors = [(f"layer.{index}.weight", "BF16", (4, 4)) for index in range(20_000)]
    write_safetensors(tmp_path / NAME, *header_of(tensors))
    assert len(read_header(LocalFiles(tmp_path), NAME).tensors) == 20_000


def _touch(directory: Path, *names: str) -> LocalFiles:
    for name in names:
        (directory / name).write_bytes(b"")
    return LocalFiles(directory)


def _index(directory: Path, content: object) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps(content))


def test_the_index_decides_which_files_hold_the_weights(tmp_path: Path) -> None:
    _index(tmp_path, {"weight_map": {"a": "model-00001-of-00001.safetensors"}})
    files = _touch(tmp_path, "model-00001-of-00001.safetensors", "consolidated.safetensors")
    assert find_weights(files).files == ("model-00001-of-00001.safetensors",)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    _index(tmp_path, {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}})
    with pytest.raises(Refused, match=r"lacks 1 of 2 weight files, the first is b\.safetensors") as refusal:
        find_weights(_touch(tmp_path, "a.safetensors"))
    assert refusal.value.reason == "ShardMissing"


def test_a_missing_shard_is_seen_without_an_index_as_well(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"model-00002-of-00003\.safetensors") as refusal:
        find_weights(_touch(tmp_path, "model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"))
    assert refusal.value.reason == "ShardMissing"


def test_pickled_weights_are_named_and_not_opened(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"pickled weights \(pytorch_model\.bin\)") as refusal:
        find_weights(_touch(tmp_path, "pytorch_model.bin"))
    assert refusal.value.reason == "WeightsMissing"


@pytest.mark.parametrize(
    ("write", "what"),
    [
        pytest.param(lambda d: _index(d, {"weight_map": {"a": "../../etc/passwd"}}), "no .safetensors file", id="path"),
        pytest.param(lambda d: _index(d, {"weight_map": {"a": 3}}), "no .safetensors file", id="number"),
        pytest.param(lambda d: _index(d, {"weight_map": {}}), "no weight_map", id="empty"),
        pytest.param(lambda d: _index(d, []), "no weight_map", id="list"),
        pytest.param(lambda d: (d / "model.safetensors.index.json").write_text("{"), "not JSON", id="half"),
    ],
)
def test_a_bad_index_is_refused(tmp_path: Path, write: Callable[[Path], object], what: str) -> None:
    write(tmp_path)
    with pytest.raises(Refused, match="index") as refusal:
        find_weights(LocalFiles(tmp_path))
    assert what in refusal.value.message
