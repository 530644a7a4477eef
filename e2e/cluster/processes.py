"""Start a component so that it outlives us, and find it again.

It gets a session of its own (no shell's end reaches it), a log file, and its cgroup before it runs its first
instruction. No process id is written down: a component is the process in its cgroup that runs its program.
"""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import cgroups
from e2e.cluster.components import Component
from e2e.cluster.config import ClusterConfig
from e2e.cluster.debian import SYSTEM_PATH
from e2e.cluster.errors import ClusterError
from e2e.cluster.network import enter

ENTER_CGROUPS = 'n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ > "$1" || exit 97; shift; n=$((n - 1)); done; exec "$@"'
LOG_LINES_SHOWN = 5
LOG_TAIL_BYTES = 8192


@dataclass(frozen=True)
class Running:
    """A component's living process."""

    pid: int
    age_seconds: float


def start(component: Component, config: ClusterConfig, roots: Sequence[Path]) -> subprocess.Popen[bytes]:
    """Start it, detached. The handle is for noticing an early death only."""
    cgroup = component.cgroup(config)
    cgroups.create(cgroup, roots)
    files = [str(path) for path in cgroups.process_files(cgroup, roots)]
    prefix = enter(component.node) if component.node else []
    path = ":".join([*(str(folder) for folder in component.search_path), SYSTEM_PATH])
    environment = {"PATH": path, "HOME": str(Path.home())}
    log = log_path(component, config)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        return subprocess.Popen(
            ["/bin/sh", "-c", ENTER_CGROUPS, "sh", str(len(files)), *files, *prefix, *component.argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
            env=environment,
            start_new_session=True,
        )


def find(component: Component, config: ClusterConfig, roots: Sequence[Path]) -> Running | None:
    """Its process, or None when it does not run."""
    for pid in sorted(cgroups.members(component.cgroup(config), roots)):
        if cgroups.command(pid)[0] == component.argv[0]:
            return Running(pid, _age_seconds(pid))
    return None


def stop(component: Component, config: ClusterConfig, roots: Sequence[Path], timeout_seconds: float = 10.0) -> None:
    """Kill its process, not the containers that may share its cgroup, and wait until it is gone.

    Raises:
        ClusterError: it stays.
    """
    deadline = time.monotonic() + timeout_seconds
    while running := find(component, config, roots):
        if time.monotonic() > deadline:
            raise ClusterError(f"{component.name} (process {running.pid}) does not end although killed")
        try:
            os.kill(running.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        time.sleep(cgroups.POLL_SECONDS)


def log_path(component: Component, config: ClusterConfig) -> Path:
    """Where its output goes."""
    return config.log_dir / f"{component.name}.log"


def last_words(component: Component, config: ClusterConfig) -> str:
    """The end of its log, for an error message."""
    path = log_path(component, config)
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
    except OSError:
        lines = []
    return "\n".join([f"last lines of {path}:", *(f"  {line[:300]}" for line in lines)])


def _age_seconds(pid: int) -> float:
    """Source: proc(5), field 22 of /proc/PID/stat is the start in clock ticks after boot."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, IndexError, ValueError):
        return 0.0
    return uptime - ticks / os.sysconf("SC_CLK_TCK")
