"""Remove every trace of the cluster, in whatever state it is, and prove it."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster import cgroups, foreign, mounts, network, record
from e2e.cluster.config import ClusterConfig
from e2e.cluster.errors import ClusterError


def remove(config: ClusterConfig, known: record.Record | None) -> None:
    """Remove the cluster; images, registry, binaries and logs stay in the cache.

    Every step works on what it finds, so it also finishes what an interrupted removal began.

    Raises:
        ClusterError: something cannot be removed.
    """
    roots = cgroups.hierarchies()
    cgroups.kill_all(config.cgroup, roots)
    mounts.unmount_below(owned_dirs(config))
    network.remove(config)
    cgroups.remove(config.cgroup, roots)
    foreign.remove(config)
    for folder in owned_dirs(config):
        _remove_tree(folder)
    if known is not None:
        record.restore_sysctls(known.sysctls)


def purge(config: ClusterConfig) -> list[str]:
    """Empty the cluster's part of the cache, once the cluster is gone; the names of what was removed.

    Raises:
        ClusterError: the cluster is not gone.
    """
    if left := leftovers(config):
        raise ClusterError(f"the cluster is not gone ({left[0]}): the cache is kept")
    removed = []
    for name in ("bin", "registry", "nodes", "logs", "images"):
        folder = config.home / name
        if folder.exists():
            _remove_tree(folder)
            removed.append(name)
    return removed


def leftovers(config: ClusterConfig, known: record.Record | None = None) -> list[str]:
    """Everything of the cluster that is still on this machine, in words; empty when it is gone."""
    roots = cgroups.hierarchies()
    living = sorted(cgroups.members(config.cgroup, roots))
    found = [f"process {pid}: {' '.join(cgroups.command(pid))[:120]}" for pid in living]
    found += [f"cgroup {path}" for path in cgroups.existing(config.cgroup, roots)]
    found += [f"mount {point}" for point in mounts.below(owned_dirs(config), mounts.all_mounts())]
    found += network.leftovers(config)
    found += [f"folder {path}" for path in owned_dirs(config) if path.exists()]
    found += [f"file {path}" for path in foreign.files(config)]
    if known is not None:
        now = record.read_sysctls()
        changed = {name: value for name, value in known.sysctls.items() if now.get(name) != value}
        found += [f"setting {name} was {value}, is {now.get(name)}" for name, value in changed.items()]
    return found


def owned_dirs(config: ClusterConfig) -> list[Path]:
    """The folders that exist only while the cluster does."""
    return [config.run_dir, config.state_dir]


def _remove_tree(folder: Path) -> None:
    """Delete a folder that nothing is mounted in: what a mount shows is somebody's data.

    Raises:
        ClusterError: something is mounted there.
    """
    mounted = mounts.below([folder], mounts.all_mounts())
    if mounted:
        raise ClusterError(f"{folder} is not removed because {mounted[0]} is mounted")
    if folder.exists():
        shutil.rmtree(folder)


def describe(left: Sequence[str]) -> str:
    """An error message for a removal that left something."""
    shown = "\n".join(f"  {line}" for line in left[:20])
    return f"{len(left)} things of the cluster are left:\n{shown}"
