"""Build or fetch every program of the cluster, each once per machine.

Standard library alone: it runs beside the installation of the virtual environment. A program is built into a temporary
folder and renamed into place, so an interrupted build leaves nothing that looks finished.
"""

import os
import re
import shutil
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TextIO

from e2e.cluster.commands import SHOWN_BYTES, run, stream
from e2e.cluster.config import cache_dir as cache_dir_of
from e2e.cluster.errors import ClusterError
from e2e.cluster.helm import fetch_helm
from e2e.cluster.locks import exclusive
from e2e.cluster.programs import GO_DIR, GO_PROGRAMS, HELM_VERSION, GoProgram, folders, helm_folder
from e2e.cluster.progress import Durations, Progress, Step

GO_BUILD_TIMEOUT_SECONDS = 3600.0
"""Kubernetes takes 10 minutes on two idle cores; six times that on a crowded machine."""
OLDEST_GO_MINOR = 21
"""From 1.21 on, Go fetches the newer toolchain that a go.mod asks for, or says in a line that it may not."""
BUILD_NICENESS = 5
"""Other set-up steps, which the user waits for as well, go first."""


def build_all(cache_dir: Path, out: TextIO | None = None) -> None:
    """Make every missing program; say so where nothing is missing.

    Raises:
        ClusterError: Go is missing, a build failed or a download did.
    """
    durations = Durations(cache_dir / "durations.json")
    progress = Progress(durations, total=len(GO_PROGRAMS) + 1, out=out)
    for program in GO_PROGRAMS:
        _ensure_go_program(program, cache_dir, progress)
    with exclusive(_lock(cache_dir, "helm"), GO_BUILD_TIMEOUT_SECONDS):
        if helm_folder(cache_dir).exists():
            progress.skip("helm", "already there")
        else:
            with progress.step(f"fetch helm {HELM_VERSION}", "fetch helm"):
                fetch_helm(helm_folder(cache_dir))
    _link_all(cache_dir)


def missing(cache_dir: Path) -> list[str]:
    """Names of programs that are not built yet."""
    absent = [program.name for program in GO_PROGRAMS if not program.folder(cache_dir).exists()]
    return absent if helm_folder(cache_dir).exists() else [*absent, "helm"]


def _ensure_go_program(program: GoProgram, cache_dir: Path, progress: Progress) -> None:
    folder = program.folder(cache_dir)
    if folder.exists():
        progress.skip(program.name, "already built")
        return
    key = f"build {program.name}"
    with ExitStack() as waiting:
        lock = exclusive(
            _lock(cache_dir, folder.name),
            GO_BUILD_TIMEOUT_SECONDS,
            lambda: _enter(waiting, progress.step(f"{program.name}, which another process builds", like=key)),
        )
        with lock:
            waiting.close()
            if folder.exists():
                return
            go = find_go()
            label = (
                program.name if len(program.commands()) == 1 else f"{program.name} ({', '.join(program.commands())})"
            )
            with progress.step(f"build {label}", key) as step:
                _build_into(program, folder, go, step)


def _enter(stack: ExitStack, step: AbstractContextManager[Step]) -> None:
    stack.enter_context(step)


def find_go() -> Path:
    """The Go compiler.

    Raises:
        ClusterError: none on PATH nor at its usual place, or one that cannot even fetch the one needed.
    """
    found = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")
    remedy = "unpack a release of Go 1.26.6 or newer into /usr/local/go, or set OCTAVO_KUBECONFIG to a cluster of yours"
    if not found:
        raise ClusterError(f"Go is needed to build Kubernetes and is not on PATH: {remedy}")
    version = run([found, "env", "GOVERSION"]).strip()
    number = re.match(r"go1\.(\d+)", version)
    if number is not None and int(number[1]) < OLDEST_GO_MINOR:
        raise ClusterError(f"{found} is {version}, too old to build Kubernetes: {remedy}")
    return Path(found)


def go_command(program: GoProgram, go: Path, output: Path) -> list[str]:
    """The command line; `-v` names each package as it is compiled, which is the progress shown."""
    tags = ["-tags", ",".join(program.tags)] if program.tags else []
    flags = ["-v", "-mod=readonly", "-trimpath", "-buildvcs=false", *tags, "-ldflags", program.ldflags()]
    return ["nice", "-n", str(BUILD_NICENESS), str(go), "build", *flags, "-o", str(output), program.package]


def _build_into(program: GoProgram, folder: Path, go: Path, step: Step) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{folder.name}-"
    for abandoned in folder.parent.glob(f"{prefix}*"):  # by a build that was killed; the lock says that none runs
        shutil.rmtree(abandoned)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent) as scratch:
        built = Path(scratch) / "out"
        built.mkdir()
        _run_go(go_command(program, go, built / program.name), GO_DIR / program.module, step)
        for command in program.called_as:
            (built / command).symlink_to(program.name)
        built.rename(folder)


def _run_go(argv: list[str], module_dir: Path, step: Step) -> None:
    """Run the build, count the packages it names, keep its other words for an error."""
    compiled = 0
    said: list[str] = []

    def hear(line: str) -> None:
        nonlocal compiled
        words = line.strip()
        if words.startswith("go: downloading"):
            step.note("downloading modules")
        elif " " in words or "\t" in words or ":" in words:
            said.append(words)
        else:
            compiled += 1
            step.note(f"{compiled} packages")

    environment = {**os.environ, "CGO_ENABLED": "0"}
    status = stream(argv, GO_BUILD_TIMEOUT_SECONDS, hear, environment, module_dir)
    if status != 0:
        words = "\n".join(said)[-SHOWN_BYTES:]
        raise ClusterError(f"go build in {module_dir.name}/ failed with status {status}:\n{words}")


def _link_all(cache_dir: Path) -> None:
    """`bin/current/NAME` for every program, so that a person needs one folder on PATH."""
    current = cache_dir / "bin" / "current"
    current.mkdir(parents=True, exist_ok=True)
    for folder in folders(cache_dir):
        for path in folder.iterdir():
            fresh = current / f".{path.name}.{os.getpid()}"
            fresh.symlink_to(path)
            fresh.replace(current / path.name)


def _lock(cache_dir: Path, name: str) -> Path:
    return cache_dir / "locks" / f"{name}.lock"


def main() -> None:
    """`build` of the command line."""
    started = time.monotonic()
    cache_dir = cache_dir_of(os.environ)
    build_all(cache_dir)
    print(f"programs are in {cache_dir / 'bin' / 'current'} ({time.monotonic() - started:.0f}s)", flush=True)
