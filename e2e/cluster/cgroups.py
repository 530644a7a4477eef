"""Control groups: what makes a process ours.

Every component and every pod lives below one cgroup. So "which processes belong to the cluster" has an exact answer
that no crash, no stale file and no reused process id can make wrong: those in that cgroup.
Both layouts are handled: version 2 (one hierarchy) and version 1 (one hierarchy per controller).
"""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster import mounts
from e2e.cluster.errors import ClusterError

POLL_SECONDS = 0.05
KILL_TIMEOUT_SECONDS = 20.0
"""For a killed process to be gone; only one that waits for a dead disk takes longer."""


def hierarchies() -> list[Path]:
    """Mount points of every cgroup hierarchy on this machine.

    Raises:
        ClusterError: there is none.
    """
    found = [mount.point for mount in mounts.all_mounts() if mount.kind in ("cgroup", "cgroup2")]
    if not found:
        raise ClusterError("no cgroup hierarchy is mounted below /sys/fs/cgroup: containers cannot run on this machine")
    return found


def create(name: str, roots: Sequence[Path]) -> None:
    """Make the cgroup in every hierarchy, ready to take processes."""
    for root in roots:
        folder = root
        for part in name.split("/"):
            parent, folder = folder, folder / part
            _delegate(parent)
            folder.mkdir(exist_ok=True)
            _inherit_cpuset(parent, folder)


def _delegate(parent: Path) -> None:
    """Version 2: hand the parent's controllers down, else limits of pods have nothing to act on."""
    available = parent / "cgroup.controllers"
    if available.exists() and (controllers := available.read_text().split()):
        (parent / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in controllers))


def _inherit_cpuset(parent: Path, folder: Path) -> None:
    """Version 1: a new cpuset is empty and refuses every process until it has processors and memory nodes."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (folder / "cgroup.clone_children").exists() and (folder / name).exists():
            inherited = (parent / name).read_text().strip()
            if not (folder / name).read_text().strip():
                (folder / name).write_text(inherited)


def weigh(name: str, roots: Sequence[Path], processes: int) -> None:
    """Give the cgroup the processor time of so many ordinary processes.

    To the scheduler a cgroup next to single processes is one of them: without this the whole cluster would get what
    one compiler beside it gets.
    """
    for root in roots:
        for file, value in (("cpu.shares", 1024 * processes), ("cpu.weight", min(100 * processes, 10_000))):
            if (root / name / file).exists():
                (root / name / file).write_text(str(value))


def process_files(name: str, roots: Sequence[Path]) -> list[Path]:
    """Files into which a process writes its id to enter the cgroup."""
    return [root / name / "cgroup.procs" for root in roots]


def members(name: str, roots: Sequence[Path]) -> set[int]:
    """Process ids in the cgroup and everything below it, in any hierarchy; zombies are not counted."""
    found: set[int] = set()
    for root in roots:
        top = root / name
        if not top.is_dir():
            continue
        for folder, _, _ in os.walk(top):
            try:
                found.update(int(line) for line in (Path(folder) / "cgroup.procs").read_text().split())
            except OSError:  # removed between listing and reading
                continue
    return {pid for pid in found if pid > 0 and _alive(pid)}


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")


def kill_all(name: str, roots: Sequence[Path], timeout_seconds: float = KILL_TIMEOUT_SECONDS) -> None:
    """SIGKILL every member until none is left, also those born meanwhile.

    Raises:
        ClusterError: some survive, with their ids and commands.
    """
    deadline = time.monotonic() + timeout_seconds
    while living := members(name, roots):
        for pid in living:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            names = ", ".join(f"{pid} ({command(pid)[0]})" for pid in sorted(living))
            raise ClusterError(f"processes do not end although killed: {names}; they wait in the kernel, see `dmesg`")
        time.sleep(POLL_SECONDS)


def remove(name: str, roots: Sequence[Path], timeout_seconds: float = KILL_TIMEOUT_SECONDS) -> None:
    """Remove the cgroup and everything below it from every hierarchy; it must hold no process.

    Raises:
        ClusterError: the kernel keeps one of them.
    """
    deadline = time.monotonic() + timeout_seconds
    for root in roots:
        while folders := _folders(root / name):
            refused = next((error for folder in folders if (error := _rmdir(folder))), None)
            if refused is not None and time.monotonic() > deadline:
                raise ClusterError(f"a cgroup cannot be removed: {refused}")
            if refused is not None:
                time.sleep(POLL_SECONDS)


def _rmdir(folder: Path) -> OSError | None:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return None
    except OSError as error:  # busy: the kernel is still taking leave of a dead process
        return error
    return None


def _folders(top: Path) -> list[Path]:
    """The cgroup and those below it, the deepest first."""
    if not top.is_dir():
        return []
    return [Path(folder) for folder, _, _ in os.walk(top, topdown=False)]


def existing(name: str, roots: Sequence[Path]) -> list[Path]:
    """Where the cgroup is still there."""
    return [root / name for root in roots if (root / name).is_dir()]


def command(pid: int) -> list[str]:
    """The command line of a process; [''] when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return [""]


def memory_bytes(pid: int) -> int:
    """Memory of a process, what it shares counted in parts, so that sums are true; 0 when it is gone."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    sizes = (line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:"))
    return int(next(sizes, "0")) * 1024
