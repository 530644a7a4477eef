"""Bring the cluster up, or what is missing of it.

Level-based: each step looks whether its thing is there and makes it if not. So a second `up` does nothing, an `up`
after a crash starts what died (and keeps the API server's data), and an `up` after an upgrade starts afresh.
"""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from e2e.cluster import cgroups, components, debian, down, health, network, pki, processes, record, rendering
from e2e.cluster.build import build_all, missing
from e2e.cluster.commands import run
from e2e.cluster.components import Component
from e2e.cluster.config import ClusterConfig, Node
from e2e.cluster.errors import ClusterError
from e2e.cluster.programs import GO_PROGRAMS, program_path
from e2e.cluster.progress import Durations, Progress
from images import pause
from images.errors import ImageError
from images.retention import GARBAGE_MARK

POLL_SECONDS = 0.1
COMPONENT_TIMEOUT_SECONDS = 60.0
"""For one component to report healthy; the slowest, the API server, takes 4 s on idle cores."""
NODES_TIMEOUT_SECONDS = 120.0
GARBAGE_TIMEOUT_SECONDS = 120.0
STEPS = 7
WEIGHTS = {"": 16, "/system": 8}
"""Processor shares in ordinary processes: the cluster is a dozen of them, and its control plane must not starve when
pods, or compilers beside the cluster, are busy."""
NODE_WEIGHT = 4


def up(config: ClusterConfig, say: Callable[[str], None] = print) -> ClusterConfig:
    """Start what does not run. The caller holds the cluster's lock.

    Returns:
        The configuration in force: a cluster that has more nodes than asked for keeps them.

    Raises:
        ClusterError: this machine lacks something, or a component does not come up even from a clean start.
    """
    known = record.read(config.record)
    if known is not None:
        config = _merged(config, known)
    debian.ensure(debian.CLUSTER_PACKAGES, say)
    if missing(config.cache_dir):
        build_all(config.cache_dir)
    start = _Start(config, _programs(config, say), say)
    if known is None:
        start.clean("remains of an earlier cluster are removed")
    elif start.outdated(known):
        start.clean("its configuration or its programs changed: the running cluster is replaced")
        known = None
    elif start.complete():
        say(f"the cluster is already up: {config.node_count} node(s), API server at {config.api_url}")
        return config
    try:
        start.run(known)
    except ClusterError as error:
        if known is None:
            raise
        say(f"mending failed ({error})")
        start.clean("starting afresh")
        start.run(None)
    return config


def _merged(config: ClusterConfig, known: record.Record) -> ClusterConfig:
    """The wanted cluster, given the one that runs."""
    running = known.config()
    if running.cache_dir != config.cache_dir:
        raise ClusterError(
            f"a cluster of another cache runs on this machine: use it with OCTAVO_CACHE={running.cache_dir}, or remove "
            "it with `make cluster-down`"
        )
    return replace(config, node_count=max(config.node_count, running.node_count))


def _programs(config: ClusterConfig, say: Callable[[str], None]) -> dict[str, Path]:
    names = [command for program in GO_PROGRAMS for command in program.commands()]
    found = {name: program_path(config.cache_dir, name) for name in names}
    return {**found, "docker-registry": debian.registry_program(config.cache_dir, say)}


@dataclass
class _Start:
    """One attempt, and what it needs to know."""

    config: ClusterConfig
    programs: dict[str, Path]
    say: Callable[[str], None]
    roots: list[Path] = field(default_factory=cgroups.hierarchies)

    def __post_init__(self) -> None:
        self.components = components.all_components(self.config, self.programs)
        self.files = config_files(self.config)
        self.children: dict[str, subprocess.Popen[bytes]] = {}

    def digests(self) -> dict[str, str]:
        """Of each component with every file of its node (or of no node)."""
        return {component.name: components.digest(self._parts(component)) for component in self.components}

    def _parts(self, component: Component) -> dict[str, str]:
        folder = component.node.state_dir if component.name.startswith("node") and component.node else None
        files = {str(path): text for path, text in self.files.items() if folder is None or folder in path.parents}
        own = files if folder else {path: text for path, text in files.items() if "/node" not in path}
        return {"argv": "\0".join(component.argv), **own}

    def outdated(self, known: record.Record) -> bool:
        """Whether a running component was started with something else than it would be now."""
        now = self.digests()
        changed = any(now.get(name) != digest for name, digest in known.digests.items())
        return changed or bool(self._expired())

    def _expired(self) -> list[str]:
        folder = self.config.state_dir / "pki"
        made = pki.ensure_pki(folder, pki.leaves(self.config))
        fresh_nodes = {node.name for node in self.config.nodes if not (node.state_dir / "kubelet.json").exists()}
        return [name for name in made if name not in fresh_nodes]

    def complete(self) -> bool:
        """Whether everything runs and every node is Ready."""
        if not all(self._well(component) for component in self.components):
            return False
        ready = {node.name for node in health.nodes(self.config) if node.ready}
        return ready >= {node.name for node in self.config.nodes}

    def clean(self, why: str) -> None:
        """Remove whatever is there."""
        known = record.read(self.config.record)
        if down.leftovers(self.config):
            self.say(why)
            down.remove(self.config, known)

    def run(self, known: record.Record | None) -> None:
        """Start what does not run, in order."""
        durations = Durations(self.config.cache_dir / "durations.json")
        progress = Progress(durations, total=STEPS)
        fresh = known is None
        if fresh:
            _forget_logs(self.components, self.config)
        record.write(record.make(self.config, self.digests(), self.programs, known), self.config.record)
        with progress.step("network, certificates, configuration"):
            network.ensure(self.config)
            pki.ensure_pki(self.config.state_dir / "pki", pki.leaves(self.config))
            write_kubeconfigs(self.config)
            write_files(self.files)
        first = ["registry", "etcd", *(f"{node.name}-containerd" for node in self.config.nodes)]
        with progress.step("registry, etcd, containerd"):
            self._collect_garbage()
            self._start(first)
            self._await(first)
        with progress.step("kube-apiserver", "start kube-apiserver"):
            self._start(["kube-apiserver"])
            for node in self.config.nodes:
                self._forget_containers(node)
            self._publish_pause_image()
            self._await(["kube-apiserver"])
        controllers = ["kube-controller-manager", "kube-scheduler"]
        on_nodes = [f"{node.name}-{part}" for node in self.config.nodes for part in ("kubelet", "kube-proxy")]
        with progress.step("kube-controller-manager, kube-scheduler"):
            self._start([*controllers, *on_nodes])
            self._await(controllers)
        with progress.step("kubelet, kube-proxy"):
            self._await(on_nodes)
        with progress.step("nodes Ready", "nodes Ready") as step:
            self._await_nodes(step.note)
        with progress.step("default service account"):
            path = "/api/v1/namespaces/default/serviceaccounts/default"
            _await(lambda: health.get(self.config, path) is not None, NODES_TIMEOUT_SECONDS, "the service account")
        self.say(f"up in {progress.elapsed():.0f}s: {self.config.node_count} node(s), {self.config.api_url}")

    def _named(self, names: Iterable[str]) -> list[Component]:
        wanted = set(names)
        return [component for component in self.components if component.name in wanted]

    def _well(self, component: Component) -> bool:
        return processes.find(component, self.config, self.roots) is not None and health.healthy(component, self.config)

    def _start(self, names: Sequence[str]) -> None:
        for name, weight in WEIGHTS.items():
            cgroups.create(f"{self.config.cgroup}{name}", self.roots)
            cgroups.weigh(f"{self.config.cgroup}{name}", self.roots, weight)
        for node in self.config.nodes:
            cgroups.create(node.cgroup, self.roots)
            cgroups.weigh(node.cgroup, self.roots, NODE_WEIGHT)
        for component in self._named(names):
            if processes.find(component, self.config, self.roots) is None:
                self.children[component.name] = processes.start(component, self.config, self.roots)

    def _await(self, names: Sequence[str]) -> None:
        for component in self._named(names):
            _await(partial(self._came_up, component), COMPONENT_TIMEOUT_SECONDS, component.name)

    def _came_up(self, component: Component) -> bool:
        child = self.children.get(component.name)
        if child is not None and (status := child.poll()) is not None:
            words = processes.last_words(component, self.config)
            raise ClusterError(f"{component.name} ended with status {status}; {words}")
        return self._well(component)

    def _collect_garbage(self) -> None:
        """Free what nobody needs in the registry, which is only possible while it does not run.

        Interrupted uploads go every time; layers without an image only when an image was deleted, because a push that
        the end of the last cluster interrupted may have left layers that its repetition need not send again.
        """
        registry = self._named(["registry"])[0]
        if processes.find(registry, self.config, self.roots) is not None:
            return
        for upload in self.config.registry_dir.glob("docker/registry/v2/repositories/**/_uploads/*"):
            shutil.rmtree(upload)
        mark = self.config.registry_dir / GARBAGE_MARK
        if mark.exists():
            configuration = self.config.state_dir / "registry.json"
            run([self.programs["docker-registry"], "garbage-collect", configuration], GARBAGE_TIMEOUT_SECONDS)
            mark.unlink()

    def _forget_containers(self, node: Node) -> None:
        """Delete what an earlier cluster's containers left in containerd's store, before a kubelet sees them."""
        kubelet, runtime = self._named([f"{node.name}-kubelet"]), self._named([f"{node.name}-containerd"])
        if processes.find(kubelet[0], self.config, self.roots) is not None:
            return
        ctr = [str(self.programs["ctr"]), f"--address={node.containerd_socket}", "--namespace=k8s.io"]
        tasks = set(run([*ctr, "tasks", "list", "--quiet"]).split())
        stale = [name for name in run([*ctr, "containers", "list", "--quiet"]).split() if name not in tasks]
        if not stale:
            return
        run([*ctr, "containers", "delete", *stale], timeout_seconds=60)
        processes.stop(runtime[0], self.config, self.roots)
        self._start([runtime[0].name])
        self._await([runtime[0].name])

    def _publish_pause_image(self) -> None:
        try:
            pause.publish(self.config.registry)
        except ImageError as error:
            raise ClusterError(str(error)) from error

    def _await_nodes(self, note: Callable[[str], None]) -> None:
        def all_ready() -> bool:
            seen = health.nodes(self.config)
            waiting = [f"{node.name}: {node.message[:60]}" for node in seen if not node.ready]
            note("; ".join(waiting))
            for component in self.components:
                self._came_up(component)
            return not waiting and {node.name for node in seen} >= {node.name for node in self.config.nodes}

        _await(all_ready, NODES_TIMEOUT_SECONDS, "Ready nodes")


def _await(condition: Callable[[], bool], timeout_seconds: float, what: str) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what} did not come up within {timeout_seconds:.0f} s; see its log in the cache")
        time.sleep(POLL_SECONDS)


def config_files(config: ClusterConfig) -> dict[Path, str]:
    """Every configuration file that is no secret, by where it goes."""
    state, runc = config.state_dir, Path("/usr/sbin/runc")
    files = {state / "registry.json": rendering.registry(config)}
    for node in config.nodes:
        folder = node.state_dir
        proxy_config = rendering.kube_proxy(config, node, state / "proxy.kubeconfig")
        files |= {
            folder / "kubelet.json": rendering.kubelet(config, node, state / "pki"),
            folder / "kube-proxy.json": proxy_config,
            folder / "containerd.toml": rendering.containerd(node, str(pause.reference(config.registry)), runc),
            folder / "cni" / "10-octavo.conflist": rendering.cni(config, node),
            folder / "registries" / config.registry / "hosts.toml": rendering.registry_hosts(config),
        }
    return files


def write_files(files: dict[Path, str]) -> None:
    """Write what differs, making folders as needed; a kube-proxy whose file is touched starts anew."""
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def write_kubeconfigs(config: ClusterConfig) -> None:
    """One for every client of the API server, readable by its owner alone."""
    folder = config.state_dir / "pki"
    authority = (folder / "ca.crt").read_bytes()
    for name in ("admin", "controller-manager", "scheduler", "proxy", *(node.name for node in config.nodes)):
        certificate, key = (folder / f"{name}.crt").read_bytes(), (folder / f"{name}.key").read_bytes()
        text = rendering.kubeconfig(config.api_url, authority, certificate, key)
        pki.write_private(config.state_dir / f"{name}.kubeconfig", text.encode())


def _forget_logs(all_of: Sequence[Component], config: ClusterConfig) -> None:
    for component in all_of:
        processes.log_path(component, config).unlink(missing_ok=True)
