"""What runs of the cluster, as a table. It asks with short time limits and never hangs on the dead."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import cgroups, components, health, processes
from e2e.cluster.components import Component
from e2e.cluster.config import ClusterConfig
from e2e.cluster.progress import duration


@dataclass(frozen=True)
class Line:
    """One component as seen now."""

    name: str
    state: str
    """running, sick (it lives but does not say that it is well) or dead."""
    pid: int | None
    memory_bytes: int
    age_seconds: float
    addresses: str


@dataclass(frozen=True)
class Report:
    """Everything seen at one moment."""

    lines: tuple[Line, ...]
    nodes: tuple[health.NodeState, ...]
    nodes_wanted: int

    @property
    def healthy(self) -> bool:
        """Every component well, every node Ready."""
        ready = sum(node.ready for node in self.nodes)
        return all(line.state == "running" for line in self.lines) and ready >= self.nodes_wanted

    def text(self) -> str:
        """For a screen."""
        rows = [("COMPONENT", "STATE", "PID", "MEMORY", "AGE", "LISTENS ON")]
        for line in self.lines:
            alive = line.pid is not None
            memory = f"{line.memory_bytes / 2**20:.0f} MiB" if alive else "-"
            age = duration(line.age_seconds) if alive else "-"
            rows.append((line.name, line.state, str(line.pid or "-"), memory, age, line.addresses))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        total = sum(line.memory_bytes for line in self.lines) / 2**20
        nodes = [f"node {node.name}: {'Ready' if node.ready else f'not Ready: {node.message}'}" for node in self.nodes]
        return "\n".join([*table, *(nodes or ["no nodes: the API server does not answer"]), f"memory: {total:.0f} MiB"])


def report(config: ClusterConfig, programs: Mapping[str, str]) -> Report:
    """Look at everything at once, so that the dead cost one time limit and not one each."""
    wanted = components.all_components(config, {name: Path(path) for name, path in programs.items()})
    with ThreadPoolExecutor(max_workers=len(wanted) + 1) as pool:
        nodes = pool.submit(health.nodes, config)
        lines = tuple(pool.map(lambda component: _line(component, config), wanted))
    return Report(lines, tuple(nodes.result()), config.node_count)


def _line(component: Component, config: ClusterConfig) -> Line:
    running = processes.find(component, config, cgroups.hierarchies())
    addresses = ", ".join(component.addresses)
    if running is None:
        return Line(component.name, "dead", None, 0, 0.0, addresses)
    state = "running" if health.healthy(component, config) else "sick"
    return Line(component.name, state, running.pid, cgroups.memory_bytes(running.pid), running.age_seconds, addresses)
