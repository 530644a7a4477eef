"""Bridge, cables, namespaces and routes: how this machine and the nodes reach each other.

    host ── octavo0 (bridge, 10.99.0.1) ──┬── octavo-n1 ═ eth0 10.99.0.2 in node1's namespace ── cni0 ── pods
                                          └── octavo-n2 ═ eth0 10.99.0.3 in node2's namespace ── cni0 ── pods

The host routes pods by their node and Services by node1, so everything is reachable from here without a proxy.
Nodes talk at layer 2: the host forwards nothing and none of its settings or firewall rules change.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from e2e.cluster import mounts
from e2e.cluster.commands import run, succeeds
from e2e.cluster.config import ClusterConfig, Node
from e2e.cluster.errors import ClusterError

NO_SERVICE_TABLE = 99
"""A routing table inside the nodes' namespaces; the number means nothing."""


@dataclass(frozen=True)
class Route:
    """One of the host's routes."""

    destination: IPv4Network
    device: str


def parse_routes(text: str) -> list[Route]:
    """The output of `ip -json -4 route show`; the default route, which yields to every other, is left out."""
    routes = []
    for entry in json.loads(text or "[]"):
        if entry["dst"] != "default":
            routes.append(Route(IPv4Network(entry["dst"]), entry.get("dev", "?")))
    return routes


def collision(config: ClusterConfig, routes: Sequence[Route]) -> str | None:
    """Why the cluster's networks cannot be used on a host with these routes; None when they can."""
    variables = {"node": "OCTAVO_NODE_NETWORK", "pod": "OCTAVO_POD_NETWORK", "service": "OCTAVO_SERVICE_NETWORK"}
    for name, network in config.networks().items():
        for route in routes:
            if route.device != config.bridge and route.destination.overlaps(network):
                return (
                    f"the {name} network {network} overlaps this machine's route {route.destination} through "
                    f"{route.device}: choose another with {variables[name]}"
                )
    return None


def ensure(config: ClusterConfig) -> None:
    """Make what is missing of the network.

    Raises:
        ClusterError: a range is in use on this machine, or `ip` refuses.
    """
    if reason := collision(config, host_routes()):
        raise ClusterError(reason)
    prefix = config.node_network.prefixlen
    if not _link_exists(config.bridge):
        run(["ip", "link", "add", config.bridge, "type", "bridge"])
    run(["ip", "address", "replace", f"{config.host_address}/{prefix}", "dev", config.bridge])
    run(["ip", "link", "set", config.bridge, "up"])
    for node in config.nodes:
        _ensure_node(config, node)
    for node in config.nodes:
        run(["ip", "route", "replace", str(node.pod_network), "via", str(node.address), "dev", config.bridge])
    service_route = ["ip", "route", "replace", str(config.service_network), "via", str(config.api_address)]
    run([*service_route, "dev", config.bridge])


def _ensure_node(config: ClusterConfig, node: Node) -> None:
    namespace = node.network_namespace
    if namespace not in mounts.below([namespace], mounts.all_mounts()):
        namespace.parent.mkdir(parents=True, exist_ok=True)
        namespace.touch()
        run(["unshare", f"--net={namespace}", "true"])
    if not _link_exists(node.link):
        inside = ["peer", "name", "eth0", "netns", str(namespace)]
        run(["ip", "link", "add", node.link, "type", "veth", *inside])
    run(["ip", "link", "set", node.link, "master", config.bridge, "up"])
    address = f"{node.address}/{config.node_network.prefixlen}"
    others = [other for other in config.nodes if other.name != node.name]
    commands = [
        "link set lo up",
        f"address replace {address} dev eth0",
        "link set eth0 up",
        f"route replace default via {config.host_address}",
        *(f"route replace {other.pod_network} via {other.address}" for other in others),
        f"route replace prohibit default table {NO_SERVICE_TABLE}",
    ]
    run([*enter(node), "ip", "-batch", "-"], stdin="\n".join(commands) + "\n")
    _refuse_absent_services(config, node)
    run([*enter(node), "sysctl", "-q", "-w", "net.ipv4.ip_forward=1", "net.ipv4.icmp_ratelimit=0"])


def _refuse_absent_services(config: ClusterConfig, node: Node) -> None:
    """Let a pod or this machine that asks a Service address nobody has hear a refusal, where it would wait for an
    answer: a name that cannot be resolved then costs seconds instead of a minute.

    It is a "prohibit" route, because of the answers a route can give only this one ends a UDP question (icmp.c).
    Addresses of Services that exist are rewritten before routing and never come here. Without it, a connection that is
    opened a moment before kube-proxy knows the Service would be tracked without rewriting, and all its repeats with it:
    it hangs until the caller gives up, though a new connection would be answered.
    """
    known = json.loads(run([*enter(node), "ip", "-json", "rule", "show", "table", str(NO_SERVICE_TABLE)]) or "[]")
    for link in ("cni0", "eth0"):
        if not any(rule.get("iif") == link for rule in known):
            rule = ["iif", link, "to", str(config.service_network), "lookup", str(NO_SERVICE_TABLE)]
            run([*enter(node), "ip", "rule", "add", *rule])


def enter(node: Node) -> list[str]:
    """Prefix of a command that runs in the node's network.

    Not `ip netns exec`: that mounts another /sys, in which a kubelet finds no cgroups.
    """
    return ["nsenter", f"--net={node.network_namespace}", "--"]


def remove(config: ClusterConfig) -> None:
    """Remove the bridge with its routes and the host's cable ends; namespaces go with the mounts of the run folder.

    Raises:
        ClusterError: `ip` refuses.
    """
    for link in own_links(config, _links()):
        if not succeeds(["ip", "link", "delete", link]) and _link_exists(link):
            raise ClusterError(f"the network link {link} cannot be deleted: try `ip link delete {link}`")


def own_links(config: ClusterConfig, links: Sequence[Mapping[str, object]]) -> list[str]:
    """Names of the cluster's links among the host's, cables before the bridge."""
    names = [str(link["ifname"]) for link in links]
    cables = sorted(name for name in names if name.startswith(config.cable_prefix))
    return [*cables, *(name for name in names if name == config.bridge)]


def leftovers(config: ClusterConfig) -> list[str]:
    """What of the network is still there, in words."""
    found = [f"network link {link}" for link in own_links(config, _links())]
    networks = list(config.networks().values())
    for route in host_routes():
        if any(route.destination.subnet_of(network) for network in networks):
            found.append(f"route {route.destination} through {route.device}")
    return [*found, *_firewall_rules(config)]


def _firewall_rules(config: ClusterConfig) -> list[str]:
    """The host's firewall rules that name one of our ranges or links; we make none, so each is a defect."""
    try:
        rules = run(["iptables-save"], timeout_seconds=10).splitlines()
    except ClusterError:  # no iptables in this kernel: then it holds no rules either
        return []
    marks = [config.bridge, config.cable_prefix, *(str(network) for network in config.networks().values())]
    return [f"firewall rule {rule}" for rule in rules if any(mark in rule for mark in marks)]


def host_routes() -> list[Route]:
    """This machine's own routes."""
    return parse_routes(run(["ip", "-json", "-4", "route", "show"]))


def _links() -> list[dict[str, object]]:
    links = json.loads(run(["ip", "-json", "link", "show"]) or "[]")
    return [link for link in links if isinstance(link, dict)]


def _link_exists(name: str) -> bool:
    return Path("/sys/class/net", name).exists()
