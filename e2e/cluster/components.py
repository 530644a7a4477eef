"""The processes of the cluster: what each is started with and how its health is asked for. Pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.config import ClusterConfig, Node
from e2e.cluster.rendering import CLUSTER_DOMAIN


@dataclass(frozen=True)
class Component:
    """One process, alone in its cgroup."""

    name: str
    argv: tuple[str, ...]
    node: Node | None = None
    """Whose network it runs in; None for this machine's own."""
    health_url: str | None = None
    """Answers 200 when it is healthy; `unix:PATH` for a socket that accepts connections."""
    addresses: tuple[str, ...] = ()
    """Where it listens, for people."""
    search_path: tuple[Path, ...] = ()
    """Folders with programs that it starts by name."""

    def cgroup(self, config: ClusterConfig) -> str:
        """Its cgroup, relative to each hierarchy."""
        return f"{config.cgroup}/system/{self.name}"


def digest(parts: Mapping[str, str]) -> str:
    """Of everything that decides what runs; a different one means that a running cluster is out of date."""
    text = "\0".join(f"{name}\0{value}" for name, value in sorted(parts.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def registry(config: ClusterConfig, program: Path) -> Component:
    """The image registry, in the host's own network on the bridge's address."""
    argv = (str(program), "serve", str(config.state_dir / "registry.json"))
    return Component("registry", argv, None, f"http://{config.registry}/v2/", (config.registry,))


def etcd(config: ClusterConfig, programs: Mapping[str, Path]) -> Component:
    """The API server's store. Not synced to disk: the data is thrown away with the cluster anyway.

    It listens on the first node's loopback alone, so that no pod can reach it; the API server's health covers its.
    """
    client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
    argv = (
        str(programs["etcd"]),
        f"--data-dir={config.state_dir / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    )
    return Component("etcd", argv, config.nodes[0], None, ("127.0.0.1:2379 (node1)",))


def api_server(config: ClusterConfig, programs: Mapping[str, Path]) -> Component:
    """The API server, with the admission plug-ins and the aggregation layer of an ordinary cluster."""
    pki = config.state_dir / "pki"
    argv = (
        str(programs["kube-apiserver"]),
        "--etcd-servers=http://127.0.0.1:2379",
        f"--bind-address={config.api_address}",
        f"--advertise-address={config.api_address}",
        "--secure-port=6443",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        f"--kubelet-client-certificate={pki / 'apiserver-kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'apiserver-kubelet-client.key'}",
        # By address: the names of these nodes are in nobody's DNS, and exec, logs and port-forward would look there.
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={pki / 'service-account.pub'}",
        f"--service-account-signing-key-file={pki / 'service-account.key'}",
        f"--service-account-issuer=https://kubernetes.default.svc.{CLUSTER_DOMAIN}",
        f"--service-cluster-ip-range={config.service_network}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--requestheader-client-ca-file={pki / 'front-proxy-ca.crt'}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki / 'front-proxy-client.crt'}",
        f"--proxy-client-key-file={pki / 'front-proxy-client.key'}",
    )
    health = f"{config.api_url}/readyz"
    return Component("kube-apiserver", argv, config.nodes[0], health, (f"{config.api_address}:6443",))


def controller_manager(config: ClusterConfig, programs: Mapping[str, Path]) -> Component:
    """The controllers; there is one of it, so it needs no leader election."""
    pki, kubeconfig = config.state_dir / "pki", config.state_dir / "controller-manager.kubeconfig"
    argv = (
        str(programs["kube-controller-manager"]),
        *_secured(config, kubeconfig),
        f"--service-account-private-key-file={pki / 'service-account.key'}",
        f"--root-ca-file={pki / 'ca.crt'}",
        f"--cluster-signing-cert-file={pki / 'ca.crt'}",
        f"--cluster-signing-key-file={pki / 'ca.key'}",
        "--use-service-account-credentials=true",
        f"--cluster-cidr={config.pod_network}",
        f"--service-cluster-ip-range={config.service_network}",
        f"--flex-volume-plugin-dir={config.state_dir / 'volume-plugins'}",
    )
    address = f"{config.api_address}:10257"
    return Component("kube-controller-manager", argv, config.nodes[0], f"https://{address}/healthz", (address,))


def scheduler(config: ClusterConfig, programs: Mapping[str, Path]) -> Component:
    """The scheduler."""
    kubeconfig = config.state_dir / "scheduler.kubeconfig"
    argv = (str(programs["kube-scheduler"]), *_secured(config, kubeconfig))
    address = f"{config.api_address}:10259"
    return Component("kube-scheduler", argv, config.nodes[0], f"https://{address}/healthz", (address,))


def _secured(config: ClusterConfig, kubeconfig: Path) -> tuple[str, ...]:
    """Flags that controller-manager and scheduler share. Metrics need a token; health does not."""
    return (
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--leader-elect=false",
        f"--bind-address={config.api_address}",
    )


def containerd(config: ClusterConfig, node: Node, programs: Mapping[str, Path]) -> Component:
    """The container runtime of one node; it finds its shim by name."""
    argv = (str(programs["containerd"]), f"--config={node.state_dir / 'containerd.toml'}", "--log-level=warn")
    socket = node.containerd_socket
    folders = (programs["containerd-shim-runc-v2"].parent,)
    return Component(f"{node.name}-containerd", argv, node, f"unix:{socket}", (str(socket),), folders)


def kubelet(config: ClusterConfig, node: Node, programs: Mapping[str, Path]) -> Component:
    """The node itself."""
    argv = (
        str(programs["kubelet"]),
        f"--config={node.state_dir / 'kubelet.json'}",
        f"--kubeconfig={config.state_dir / f'{node.name}.kubeconfig'}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        f"--root-dir={node.state_dir / 'kubelet'}",
        f"--cert-dir={node.state_dir / 'kubelet-certificates'}",
    )
    health = f"http://{node.address}:10248/healthz"
    return Component(f"{node.name}-kubelet", argv, node, health, (f"{node.address}:10250",))


def kube_proxy(config: ClusterConfig, node: Node, programs: Mapping[str, Path]) -> Component:
    """Services on one node: firewall rules inside its namespace."""
    argv = (str(programs["kube-proxy"]), f"--config={node.state_dir / 'kube-proxy.json'}")
    health = f"http://{node.address}:10256/livez"
    return Component(f"{node.name}-kube-proxy", argv, node, health, (f"{node.address}:10249",))


def all_components(config: ClusterConfig, programs: Mapping[str, Path]) -> list[Component]:
    """Every process in the order in which they are started. `programs` maps a command to its file."""
    return [
        registry(config, programs["docker-registry"]),
        etcd(config, programs),
        api_server(config, programs),
        *(containerd(config, node, programs) for node in config.nodes),
        controller_manager(config, programs),
        scheduler(config, programs),
        *(kubelet(config, node, programs) for node in config.nodes),
        *(kube_proxy(config, node, programs) for node in config.nodes),
    ]
