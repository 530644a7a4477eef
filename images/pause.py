"""The pause image: made from a few lines of C, without an engine and without any registry but our own."""

import hashlib
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from images.errors import ImageError
from images.oci import Settings, pack
from images.reference import Reference
from images.registry import Registry

SOURCE = Path(__file__).with_name("pause.c")
COMPILE_TIMEOUT_SECONDS = 60.0
USER = "65535:65535"


def reference(host: str) -> Reference:
    """Where the image lies in that registry; the tag follows from the source."""
    digest = hashlib.sha256(SOURCE.read_bytes() + platform.machine().encode() + USER.encode())
    return Reference(host, "octavo/pause", digest.hexdigest()[:12])


def publish(host: str) -> str:
    """See to it that the registry has the image; the reference under which.

    Raises:
        ImageError: no C compiler, or a registry that refuses.
    """
    target, registry = reference(host), Registry(host)
    if registry.digest(target) is None:
        with tempfile.TemporaryDirectory(prefix="octavo-pause-") as scratch:
            program = Path(scratch) / "pause"
            _compile(program)
            settings = Settings(entrypoint=("/pause",), user=USER)
            registry.push(pack({"pause": program}, settings, Path(scratch)), target)
    return str(target)


def _compile(program: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise ImageError("a C compiler is needed for the pause image: apt-get install gcc libc6-dev")
    command = [compiler, "-Os", "-static", "-s", "-Wall", "-Wextra", "-Werror", "-o", str(program), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_SECONDS, check=False)
    if done.returncode != 0:
        raise ImageError(f"compiling {SOURCE.name} failed: {done.stderr.strip()[-1000:]}")
