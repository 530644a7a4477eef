"""What turns a Dockerfile into an image in a registry: buildah, or docker where its daemon runs."""

import re
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.commands import stream
from e2e.cluster.errors import ClusterError
from images.errors import ImageError

BUILD_TIMEOUT_SECONDS = 3600.0
"""The runtime image downloads and unpacks 5 GB of torch; six times what that takes on two crowded cores."""
PUSH_TIMEOUT_SECONDS = 1800.0
QUESTION_TIMEOUT_SECONDS = 60.0
SHOWN_LINES = 15
COMPRESSION = ("--compression-format=zstd", "--compression-level=3")
STEP = re.compile(r"STEP (\d+/\d+): (\w+)|#\d+ \[[^]]*?(\d+/\d+)\] (\w+)")
"""How buildah and BuildKit announce a step."""
Note = Callable[[str], None]
"""Told in a few words what is being done."""


def _silent(_words: str) -> None:
    """For who does not want to know."""


@dataclass(frozen=True)
class Build:
    """One image to be built."""

    dockerfile: Path
    context: Path
    name: str
    """Under which the engine keeps it, a reference in the target registry."""
    arguments: Mapping[str, str]
    """Build arguments. They end up in the image's history, so nothing about this machine belongs there."""
    secrets: Mapping[str, Path]
    """Files that one step may see and no layer keeps."""
    lent: Mapping[str, Path]
    """Files and folders of this machine shown to every step, by where the build sees them; no layer keeps them."""
    log: Path


class Engine(ABC):
    """Builds and pushes."""

    name: str

    @abstractmethod
    def build(self, build: Build, note: Note) -> None:
        """Make the image.

        Raises:
            ImageError: the build failed; the message ends with its last lines.
        """

    @abstractmethod
    def push(self, name: str, plain_http: bool, log: Path) -> None:
        """Upload the image under the reference it was built as.

        Raises:
            ImageError: the registry refused.
        """

    @abstractmethod
    def has(self, name: str) -> bool:
        """Whether the engine keeps an image of that name."""

    @abstractmethod
    def forget(self, name: str) -> None:
        """Remove the image and what only it needs; it may be gone already."""

    @abstractmethod
    def import_base(self, folder: Path, name: str, log: Path) -> None:
        """Make an image with the one layer `folder`, unless there is one of that name."""


@dataclass(frozen=True)
class Buildah(Engine):
    """Debian's builder: no daemon, works inside containers (chroot isolation)."""

    storage: Path
    uv_cache: Path
    """This machine's, so that what its virtual environment fetched is not fetched again."""
    name: str = "buildah"

    def build(self, build: Build, note: Note) -> None:
        """See Engine."""
        self.uv_cache.mkdir(parents=True, exist_ok=True)
        arguments = {**build.arguments, "UV_CACHE_DIR": "/uv-cache"}
        words = ["bud", "--isolation=chroot", "--network=host", "--layers", "--format=oci"]
        words += [f"--volume={self.uv_cache}:/uv-cache:rw"]
        words += [f"--volume={path}:{target}:ro" for target, path in build.lent.items()]
        words += [f"--build-arg={name}={value}" for name, value in arguments.items()]
        words += [f"--secret=id={name},src={path}" for name, path in build.secrets.items()]
        words += [f"--file={build.dockerfile}", f"--tag={build.name}", str(build.context)]
        _logged(self._command(words), BUILD_TIMEOUT_SECONDS, build.log, note)

    def push(self, name: str, plain_http: bool, log: Path) -> None:
        """See Engine."""
        # zstd: gzip takes minutes for the 5 GB of the runtime image. Every containerd since 1.5 reads it.
        words = ["push", f"--tls-verify={'false' if plain_http else 'true'}", *COMPRESSION, name]
        _logged(self._command(words), PUSH_TIMEOUT_SECONDS, log)

    def import_base(self, folder: Path, name: str, log: Path) -> None:
        """See Engine."""
        if self.has(name):
            return
        dockerfile = "FROM scratch\nCOPY . /\nENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
        recipe = log.with_suffix(".Dockerfile")
        recipe.parent.mkdir(parents=True, exist_ok=True)
        recipe.write_text(dockerfile + 'CMD ["python3"]\n')
        words = ["bud", "--isolation=chroot", "--format=oci", f"--file={recipe}", f"--tag={name}", str(folder)]
        _logged(self._command(words), BUILD_TIMEOUT_SECONDS, log)

    def has(self, name: str) -> bool:
        """See Engine."""
        return _succeeds(self._command(["inspect", "--type=image", name]))

    def forget(self, name: str) -> None:
        """See Engine."""
        _succeeds(self._command(["rmi", name]))

    def _command(self, words: Sequence[str]) -> list[str]:
        return ["buildah", f"--root={self.storage / 'storage'}", f"--runroot={self.storage / 'run'}", *words]


@dataclass(frozen=True)
class Docker(Engine):
    """Docker with BuildKit, whose daemon has caches and certificates of its own."""

    name: str = "docker"

    def build(self, build: Build, note: Note) -> None:
        """See Engine."""
        words = ["docker", "build", "--network=host", f"--file={build.dockerfile}", f"--tag={build.name}"]
        words += [f"--build-arg={name}={value}" for name, value in build.arguments.items()]
        words += [f"--secret=id={name},src={path}" for name, path in build.secrets.items()]
        _logged([*words, str(build.context)], BUILD_TIMEOUT_SECONDS, build.log, note)

    def push(self, name: str, plain_http: bool, log: Path) -> None:
        """See Engine. For plain HTTP the daemon must list the registry under `insecure-registries`."""
        _logged(["docker", "push", name], PUSH_TIMEOUT_SECONDS, log)

    def has(self, name: str) -> bool:
        """See Engine."""
        return _succeeds(["docker", "image", "inspect", name])

    def forget(self, name: str) -> None:
        """See Engine."""
        _succeeds(["docker", "image", "rm", name])

    def import_base(self, folder: Path, name: str, log: Path) -> None:
        """See Engine."""
        if self.has(name):
            return
        archive = subprocess.Popen(["tar", "-C", str(folder), "-c", "."], stdout=subprocess.PIPE)
        with archive, log.open("ab") as out:
            done = subprocess.run(
                ["docker", "import", "-", name],
                stdin=archive.stdout,
                stdout=out,
                stderr=out,
                timeout=BUILD_TIMEOUT_SECONDS,
                check=False,
            )
        if done.returncode != 0:
            raise ImageError(f"docker import of the base image failed; see {log}")


def choose(wanted: str, storage: Path, uv_cache: Path) -> Engine:
    """The engine asked for; `auto` takes buildah, else a docker whose daemon answers.

    Raises:
        ImageError: it is not there.
    """
    if wanted in ("auto", "buildah") and shutil.which("buildah"):
        return Buildah(storage, uv_cache)
    if wanted in ("auto", "docker") and _docker_runs():
        return Docker()
    raise ImageError(f"no image builder ({wanted}): apt-get install buildah, or start docker")


def _docker_runs() -> bool:
    return shutil.which("docker") is not None and _succeeds(["docker", "info"])


def _succeeds(command: Sequence[str]) -> bool:
    try:
        return (
            subprocess.run(command, capture_output=True, timeout=QUESTION_TIMEOUT_SECONDS, check=False).returncode == 0
        )
    except subprocess.TimeoutExpired:
        return False


def _logged(command: Sequence[str], timeout_seconds: float, log: Path, note: Note = _silent) -> None:
    """Run with all output in a log, noting which step is done; a failure shows the log's end."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as out:

        def hear(line: str) -> None:
            out.write(f"{line}\n")
            if step := STEP.search(line):
                number, instruction = (step[1], step[2]) if step[1] else (step[3], step[4])
                note(f"step {number}, {instruction}")

        try:
            status = stream(["nice", "-n", "5", *command], timeout_seconds, hear)
        except ClusterError as error:
            raise ImageError(f"{error}; see {log}") from error
    if status != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-SHOWN_LINES:])
        raise ImageError(f"`{command[0]}` failed with status {status}; the end of {log}:\n{tail}")
