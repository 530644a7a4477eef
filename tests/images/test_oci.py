import json
import os
import tarfile
from pathlib import Path

import pytest

from images.errors import ImageError
from images.oci import Settings, files_of, pack


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    (model / "nested").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "nested" / "weights.safetensors").write_bytes(bytes(range(256)) * 100)
    return model


def packed(folder: Path, scratch: Path, **annotations: str) -> tuple[str, Path]:
    scratch.mkdir()
    image = pack(files_of(folder), Settings(annotations=annotations), scratch)
    return image.manifest.digest, scratch / "layer.tar"


def test_equal_files_make_an_equal_image_whatever_their_times(folder: Path, tmp_path: Path) -> None:
    first, _ = packed(folder, tmp_path / "one")
    os.utime(folder / "config.json", (1, 1))
    second, _ = packed(folder, tmp_path / "two")
    assert first == second
    (folder / "config.json").write_text('{"a": 1}')
    assert packed(folder, tmp_path / "three")[0] != first


def test_the_files_lie_at_the_root_and_belong_to_nobody_in_particular(folder: Path, tmp_path: Path) -> None:
    _, layer = packed(folder, tmp_path / "one")
    with tarfile.open(layer) as archive:
        entries = {entry.name: entry for entry in archive}
    assert set(entries) == {"config.json", "nested", "nested/weights.safetensors"}
    assert {(entry.uid, entry.gid, entry.mtime) for entry in entries.values()} == {(0, 0, 0)}
    assert entries["nested/weights.safetensors"].size == 25600


def test_sizes_and_digests_agree_from_manifest_to_layer(folder: Path, tmp_path: Path) -> None:
    image = pack(files_of(folder), Settings(annotations={"facts": "{}"}), tmp_path)
    assert isinstance(image.manifest.content, bytes)
    manifest = json.loads(image.manifest.content)
    assert manifest["layers"][0]["size"] == (tmp_path / "layer.tar").stat().st_size
    assert manifest["annotations"] == {"facts": "{}"}
    assert isinstance(image.config.content, bytes)
    assert json.loads(image.config.content)["rootfs"]["diff_ids"] == [manifest["layers"][0]["digest"]]


def test_an_empty_or_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="nothing to pack"):
        pack(files_of(tmp_path), Settings(), tmp_path)
    with pytest.raises(ImageError, match="is no folder"):
        files_of(tmp_path / "absent")
