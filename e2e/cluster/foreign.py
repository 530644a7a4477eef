"""Traces that kubelets and containerd leave in folders of the system, outside any that they can be told to use.

Each is recognised as garbage by what it is, not by a note of who made it: a socket on which nobody listens, a link into
a folder that is ours. So nothing of another container runtime on this machine is ever touched.
"""

import errno
import socket
import stat
from pathlib import Path

from e2e.cluster.config import ClusterConfig

SHIM_SOCKETS = Path("/run/containerd/s")
"""Every shim's socket, a constant in containerd."""
DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
"""Every kubelet's, a constant in its API for device plug-ins; with it goes a checkpoint."""
CNI_RESULTS = Path("/var/lib/cni/results")
"""libcni's cache; its files begin with the pod network's name."""
CONTAINER_LOGS = Path("/var/log/containers")
"""Links to the logs of containers, a constant in the kubelet."""
DIRS = (SHIM_SOCKETS, CNI_RESULTS, CONTAINER_LOGS, DEVICE_PLUGINS)
EMPTY_DIRS = (*DIRS, SHIM_SOCKETS.parent, CNI_RESULTS.parent, DEVICE_PLUGINS.parent)
"""Removed when nothing is in them."""
CONNECT_TIMEOUT_SECONDS = 1.0


def files(config: ClusterConfig) -> list[Path]:
    """The traces that are there; asked for after the cluster's processes ended."""
    results = _entries(CNI_RESULTS, f"{config.pod_network_name}-*")
    links = [path for path in _entries(CONTAINER_LOGS) if path.is_symlink()]
    ours = [link for link in links if config.state_dir in link.readlink().parents]
    sockets = [path for path in [*_entries(SHIM_SOCKETS), *_entries(DEVICE_PLUGINS)] if is_dead_socket(path)]
    checkpoint = [] if _a_kubelet_runs() else _entries(DEVICE_PLUGINS, "kubelet_internal_checkpoint")
    return [*results, *ours, *sockets, *checkpoint]


def remove(config: ClusterConfig) -> None:
    """Remove the traces, and the folders that are empty without them."""
    for path in files(config):
        path.unlink(missing_ok=True)
    for folder in EMPTY_DIRS:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def is_dead_socket(path: Path) -> bool:
    """Whether it is a unix socket that refuses every connection because no process has it open."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return False
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(CONNECT_TIMEOUT_SECONDS)
            client.connect(str(path))
    except OSError as error:
        return error.errno == errno.ECONNREFUSED
    return False


def _entries(folder: Path, pattern: str = "*") -> list[Path]:
    return sorted(folder.glob(pattern)) if folder.is_dir() else []


def _a_kubelet_runs() -> bool:
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() == "kubelet":
                return True
        except OSError:  # it ended meanwhile
            continue
    return False
