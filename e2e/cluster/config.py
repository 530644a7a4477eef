"""Every address, name and path of the cluster, in one place.

Nothing else reads the environment, and nothing else joins paths of its own.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from e2e.cluster.errors import ClusterError

DEFAULT_NAME = "octavo"
MAX_NODES = 2
"""The pod range is split into halves; more nodes on one machine would show nothing that two do not."""

NODE_NETWORK = IPv4Network("10.99.0.0/24")
POD_NETWORK = IPv4Network("10.88.0.0/16")
SERVICE_NETWORK = IPv4Network("10.96.0.0/16")


@dataclass(frozen=True)
class Node:
    """One kubelet with its own network namespace, containerd and share of the pod addresses."""

    name: str
    address: IPv4Address
    """Where its kubelet and, on the first node, the API server listen."""
    pod_network: IPv4Network
    link: str
    """The host's end of its cable into the bridge."""
    cgroup: str
    """Parent of its pods, relative to each cgroup hierarchy, so that two kubelets never see each other's pods."""
    state_dir: Path
    """Kubelet root, pod logs, configuration; gone after `down`."""
    run_dir: Path
    """Sockets and container state; short, because a unix socket's path has at most 107 bytes."""
    store_dir: Path
    """containerd's images; outlives the cluster so that a warm start pulls nothing."""

    @property
    def containerd_socket(self) -> Path:
        """The CRI and containerd API endpoint."""
        return self.run_dir / "containerd.sock"

    @property
    def network_namespace(self) -> Path:
        """The file its network namespace is bound to; not below /run/netns, which is the system's."""
        return self.run_dir / "network"


def _default_cache() -> Path:
    return Path.home() / ".cache" / "octavo"


@dataclass(frozen=True)
class ClusterConfig:
    """What a cluster is made of. Two on one machine need different names and networks; the tests of this package run
    beside a user's cluster that way."""

    name: str = DEFAULT_NAME
    """Of everything it puts outside its folders: bridge, cables, cgroup, run folder. At most 9 characters."""
    cache_dir: Path = field(default_factory=_default_cache)
    """Survives `down`: binaries, registry storage, container images, logs of the last run."""
    node_network: IPv4Network = NODE_NETWORK
    pod_network: IPv4Network = POD_NETWORK
    service_network: IPv4Network = SERVICE_NETWORK
    registry_port: int = 5000
    node_count: int = 1

    def __post_init__(self) -> None:
        """Refuse what the layout cannot hold.

        Raises:
            ClusterError: for an unsupported number of nodes or networks that overlap or are too small.
        """
        if not re.fullmatch(r"[a-z][a-z0-9]{0,8}", self.name):
            raise ClusterError(f"OCTAVO_CLUSTER={self.name!r}: a name has 1 to 9 lower-case letters and digits")
        if not 1 <= self.node_count <= MAX_NODES:
            raise ClusterError(f"NODES={self.node_count}: this cluster has 1 or {MAX_NODES} nodes")
        if self.node_network.num_addresses < 8 or self.pod_network.prefixlen > 24:
            raise ClusterError(
                f"networks too small: {self.node_network} (nodes, at least a /29) or {self.pod_network} (pods, at "
                "least a /24)"
            )
        networks = self.networks()
        for name, network in networks.items():
            for other_name, other in networks.items():
                if name < other_name and network.overlaps(other):
                    raise ClusterError(f"the {name} network {network} overlaps the {other_name} network {other}")

    @property
    def run_dir(self) -> Path:
        """Sockets, container state and the record; does not survive a reboot, like the processes it describes."""
        return Path("/run") / self.name

    @property
    def bridge(self) -> str:
        """The network link that joins this machine and the nodes."""
        return f"{self.name}0"

    @property
    def cable_prefix(self) -> str:
        """What the names of the nodes' cables begin with; a link's name has at most 15 characters (IFNAMSIZ)."""
        return f"{self.name}-n"

    @property
    def cgroup(self) -> str:
        """Parent of everything the cluster runs: membership is what makes a process ours."""
        return self.name

    @property
    def pod_network_name(self) -> str:
        """For CNI; also the prefix of the files that it caches outside our folders."""
        return f"{self.name}-pods"

    @property
    def home(self) -> Path:
        """The cluster's part of the cache; programs are shared by all clusters."""
        return self.cache_dir if self.name == DEFAULT_NAME else self.cache_dir / "clusters" / self.name

    def networks(self) -> dict[str, IPv4Network]:
        """The three address ranges by what they are for."""
        return {"node": self.node_network, "pod": self.pod_network, "service": self.service_network}

    @property
    def host_address(self) -> IPv4Address:
        """This machine as nodes and pods see it."""
        return self.node_network[1]

    @property
    def api_address(self) -> IPv4Address:
        """Where the API server listens: the first node."""
        return self.node_network[2]

    @property
    def api_url(self) -> str:
        """The API server as reached from this machine and from pods' nodes."""
        return f"https://{self.api_address}:6443"

    @property
    def api_service_address(self) -> IPv4Address:
        """The `kubernetes` Service, which the API server takes as the first address of the range."""
        return self.service_network[1]

    @property
    def registry(self) -> str:
        """host:port under which images are pushed and pulled."""
        return f"{self.host_address}:{self.registry_port}"

    @property
    def state_dir(self) -> Path:
        """Certificates, etcd, kubelets; removed by `down`."""
        return self.home / "state"

    @property
    def log_dir(self) -> Path:
        """One log per component, kept after `down` for a look at what happened."""
        return self.home / "logs"

    @property
    def registry_dir(self) -> Path:
        """The registry's storage; outlives the cluster."""
        return self.home / "registry"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.state_dir / "admin.kubeconfig"

    @property
    def record(self) -> Path:
        """What runs now, so that `down` and `status` need not be told."""
        return self.run_dir / "cluster.json"

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes, first the one that carries the control plane."""
        halves = list(self.pod_network.subnets(prefixlen_diff=1))
        return tuple(
            Node(
                name=f"node{number}",
                address=self.node_network[1 + number],
                pod_network=halves[number - 1],
                link=f"{self.cable_prefix}{number}",
                cgroup=f"{self.cgroup}/node{number}",
                state_dir=self.state_dir / f"node{number}",
                run_dir=self.run_dir / f"node{number}",
                store_dir=self.home / "nodes" / f"node{number}",
            )
            for number in range(1, self.node_count + 1)
        )


def from_environment(environ: Mapping[str, str], node_count: int = 1) -> ClusterConfig:
    """The configuration a user asked for by OCTAVO_CACHE, OCTAVO_CLUSTER and the OCTAVO_*_NETWORK variables.

    Raises:
        ClusterError: a variable that is no IPv4 network, named with its value.
    """
    return ClusterConfig(
        name=environ.get("OCTAVO_CLUSTER") or DEFAULT_NAME,
        cache_dir=cache_dir(environ),
        node_network=_network(environ, "OCTAVO_NODE_NETWORK", NODE_NETWORK),
        pod_network=_network(environ, "OCTAVO_POD_NETWORK", POD_NETWORK),
        service_network=_network(environ, "OCTAVO_SERVICE_NETWORK", SERVICE_NETWORK),
        node_count=node_count,
    )


def _network(environ: Mapping[str, str], variable: str, default: IPv4Network) -> IPv4Network:
    text = environ.get(variable)
    if not text:
        return default
    try:
        return IPv4Network(text)
    except ValueError as error:
        raise ClusterError(f"{variable}={text!r} is no IPv4 network such as {default}: {error}") from error


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Where everything that is slow to make is kept: OCTAVO_CACHE, else octavo in the user's cache."""
    if chosen := environ.get("OCTAVO_CACHE"):
        return Path(chosen).expanduser().resolve()
    if base := environ.get("XDG_CACHE_HOME"):
        return Path(base).resolve() / "octavo"
    return _default_cache().resolve()


def external_kubeconfig(environ: Mapping[str, str]) -> Path | None:
    """The user's own cluster, named by OCTAVO_KUBECONFIG; None when this package's cluster is meant.

    Raises:
        ClusterError: the variable names a file that is not there.
    """
    chosen = environ.get("OCTAVO_KUBECONFIG")
    if not chosen:
        return None
    path = Path(chosen).expanduser().absolute()
    if not path.is_file():
        raise ClusterError(f"OCTAVO_KUBECONFIG={chosen}: there is no such file")
    return path


def current(node_count: int = 1) -> ClusterConfig:
    """`from_environment` of this process."""
    return from_environment(os.environ, node_count)
