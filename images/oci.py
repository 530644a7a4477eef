"""Pack files as an OCI image without an engine: one tar layer, a configuration and a manifest.

Equal files give equal bytes: names are sorted and times are zero, so an image's digest says what is in it.
Source: OCI image specification 1.1 (layer, config, manifest).
"""

import hashlib
import json
import platform
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from images.errors import ImageError

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Blob:
    """Content by its digest: in memory, or in a file when it is large."""

    media_type: str
    digest: str
    """sha256:HEX of the content."""
    size_bytes: int
    content: bytes | Path

    def descriptor(self) -> dict[str, object]:
        """How a manifest refers to it."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size_bytes}


@dataclass(frozen=True)
class Image:
    """Everything a registry must be given, the manifest last."""

    config: Blob
    layer: Blob
    manifest: Blob


@dataclass(frozen=True)
class Settings:
    """What a container of the image does by itself; an image that is only mounted needs none of it."""

    entrypoint: tuple[str, ...] = ()
    user: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Of the manifest, where they can be read without pulling a layer."""


def blob(media_type: str, content: bytes) -> Blob:
    """Content held in memory."""
    return Blob(media_type, f"sha256:{hashlib.sha256(content).hexdigest()}", len(content), content)


def pack(files: Mapping[str, Path], settings: Settings, scratch: Path) -> Image:
    """An image whose root holds `files` (path in the image to file here); the layer is written below `scratch`.

    Raises:
        ImageError: no files, or one that cannot be read.
    """
    if not files:
        raise ImageError("an image without files: nothing to pack")
    layer = _layer(files, scratch / "layer.tar")
    config = blob(CONFIG_TYPE, _json(_config(layer, settings)))
    manifest: dict[str, object] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": config.descriptor(),
        "layers": [layer.descriptor()],
    }
    if settings.annotations:
        manifest["annotations"] = dict(settings.annotations)
    return Image(config, layer, blob(MANIFEST_TYPE, _json(manifest)))


def files_of(folder: Path) -> dict[str, Path]:
    """Every regular file below `folder`, by its path inside it.

    Raises:
        ImageError: no such folder.
    """
    if not folder.is_dir():
        raise ImageError(f"{folder} is no folder")
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in found}


def _config(layer: Blob, settings: Settings) -> dict[str, object]:
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise ImageError(f"images for {machine} are not made here: known are {', '.join(ARCHITECTURES)}")
    run: dict[str, object] = {}
    if settings.entrypoint:
        run["Entrypoint"] = list(settings.entrypoint)
    if settings.user:
        run["User"] = settings.user
    return {
        "architecture": ARCHITECTURES[machine],
        "os": "linux",
        "config": run,
        "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
    }


def _layer(files: Mapping[str, Path], target: Path) -> Blob:
    """Not compressed: weights do not shrink, and the digest of the content is then that of the blob."""
    digest = hashlib.sha256()
    with target.open("wb") as out:
        writer = _HashingWriter(out, digest)
        with tarfile.open(fileobj=writer, mode="w|", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
            for folder in _parents(files):
                archive.addfile(_entry(folder, tarfile.DIRTYPE, 0o755, 0))
            for name in sorted(files):
                _add_file(archive, name, files[name])
    return Blob(LAYER_TYPE, f"sha256:{digest.hexdigest()}", target.stat().st_size, target)


def _add_file(archive: tarfile.TarFile, name: str, path: Path) -> None:
    try:
        with path.open("rb") as content:
            mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            archive.addfile(_entry(name, tarfile.REGTYPE, mode, path.stat().st_size), content)
    except OSError as error:
        raise ImageError(f"{path} cannot be packed: {error}") from error


def _parents(files: Mapping[str, Path]) -> list[str]:
    folders = {parent.as_posix() for name in files for parent in Path(name).parents}
    return sorted(folders - {"."})


def _entry(name: str, kind: bytes, mode: int, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.size = kind, mode, size
    return entry


class _HashingWriter:
    """Writes through to a file and hashes what it writes."""

    def __init__(self, out: IO[bytes], digest: "hashlib._Hash") -> None:
        self._out = out
        self._digest = digest

    def write(self, content: bytes) -> int:
        self._digest.update(content)
        return self._out.write(content)


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
