"""A second Triton beside the installed one: a folder of its own, put in front of the module path of a worker."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

INSTALLED = "installed"
INSTALL_SECONDS = 600


class TritonUnavailable(RuntimeError):
    """A version of Triton could not be fetched; the message says what the installer said."""


@dataclass(frozen=True)
class TritonVersion:
    """One Triton that kernels are compiled with."""

    version: str
    folder: Path | None
    """Where it lies when it is not the installed one."""

    def environment(self, scratch: Path) -> dict[str, str]:
        """Variables of a worker's process; Triton's own cache goes to `scratch`, results are cached elsewhere."""
        path = [str(self.folder)] if self.folder else []
        path += [entry for entry in (os.environ.get("PYTHONPATH"),) if entry]
        kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        return kept | {
            "PYTHONPATH": os.pathsep.join(path),
            "TRITON_CACHE_DIR": str(scratch),
            # Fused multiply-add is what kernels are written for; said aloud because a later default is "off".
            "TRITON_DEFAULT_FP_FUSION": "1",
        }


def cache_folder() -> Path:
    """$OCTAVO_CACHE or $XDG_CACHE_HOME/octavo."""
    if explicit := os.environ.get("OCTAVO_CACHE"):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo"


def triton_version(wanted: str) -> TritonVersion:
    """The installed Triton for "installed", else that version from the cache, fetched there the first time.

    Raises:
        TritonUnavailable: it is not there and cannot be fetched.
    """
    installed = _installed()
    if wanted in (INSTALLED, installed):
        if installed is None:
            raise TritonUnavailable("no Triton is installed: pip install triton")
        return TritonVersion(installed, None)
    folder = cache_folder() / f"triton-{wanted}"
    with _lock(folder.with_suffix(".lock")):
        if not folder.exists():
            _fetch(wanted, folder)
    return TritonVersion(wanted, folder)


def _installed() -> str | None:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return None


def _fetch(version: str, folder: Path) -> None:
    print(f"fetching Triton {version} into {folder} (about 700 MB unpacked)", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as scratch:
        target = Path(scratch) / "packages"
        argv = [*_installer(), "--no-deps", "--target", str(target), f"triton=={version}"]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise TritonUnavailable(f"fetching Triton {version} took more than {INSTALL_SECONDS} s") from error
        if done.returncode:
            said = done.stderr.strip()[-1500:]
            raise TritonUnavailable(f"Triton {version} cannot be fetched (without it: --triton installed): {said}")
        target.replace(folder)


def _installer() -> list[str]:
    # pip obeys what the machine says to pip; an environment made by uv may have none.
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    has_pip = subprocess.run([*pip[:3], "--version"], capture_output=True, timeout=60, check=False).returncode == 0
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    return pip if has_pip else [uv, "pip", "install", "-q", "--python", sys.executable]


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
