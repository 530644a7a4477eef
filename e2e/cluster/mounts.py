"""What is mounted, and how to make it not so. Source: proc(5), /proc/PID/mountinfo."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.commands import run, succeeds
from e2e.cluster.errors import ClusterError

MOUNTINFO = Path("/proc/self/mountinfo")
UNMOUNT_ROUNDS = 5
"""Mounts may be stacked on one point; each round takes the top off every stack."""


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo, of which we need three fields."""

    point: Path
    kind: str
    options: frozenset[str]
    """Of the file system: for a cgroup v1 hierarchy its controllers."""


def parse(text: str) -> list[Mount]:
    """The mounts in the order in which they were made."""
    mounts = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields, tail = before.split(), after.split()
        if not separator or len(fields) < 6 or len(tail) < 3:
            continue
        mounts.append(Mount(Path(_unescape(fields[4])), tail[0], frozenset(tail[2].split(","))))
    return mounts


def all_mounts() -> list[Mount]:
    """What this process sees mounted."""
    return parse(MOUNTINFO.read_text())


def below(folders: Sequence[Path], mounts: Sequence[Mount]) -> list[Path]:
    """Mount points at or below any of the folders, the last made first."""
    return [
        mount.point
        for mount in reversed(mounts)
        if any(mount.point == folder or folder in mount.point.parents for folder in folders)
    ]


def unmount_below(folders: Sequence[Path]) -> None:
    """Unmount everything at or below the folders; what is busy is detached and goes when its last user does.

    Raises:
        ClusterError: something stays mounted.
    """
    for _ in range(UNMOUNT_ROUNDS):
        points = below(folders, all_mounts())
        if not points:
            return
        for point in points:
            if not succeeds(["umount", point]) and point in below(folders, all_mounts()):
                run(["umount", "--lazy", point])
    if points := below(folders, all_mounts()):
        raise ClusterError(f"{len(points)} mounts cannot be removed, such as {points[0]}")


def _unescape(field: str) -> str:
    """mountinfo writes space, tab, newline and backslash as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), field)
