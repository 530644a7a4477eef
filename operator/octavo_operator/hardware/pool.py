"""Recognise a pool's hardware: from spec.pools[].hardware, or from the labels and allocatable of its nodes.

Never from a product name. Two integers say the generation, a third the memory; a node that lacks them is reported,
not guessed at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from octavo_operator.api import labels
from octavo_operator.api.hardware import CpuFacts, GpuFacts, Hardware, HardwareMissing
from octavo_operator.api.quantity import MIB
from octavo_operator.api.spec import Accelerator, PoolSpec
from octavo_operator.hardware.node import Node
from octavo_runtime.contract.precision import ComputeCapability

ASSUMED_GPUS_PER_NODE = 8
"""With spec.pools[].hardware no node is read; the largest common node has eight GPUs."""
CLOSEST_NODES = 3
"""How many near misses a message names."""
COMPLAINT_LIMIT = 400
"""Characters of one near miss in a message."""


@dataclass(frozen=True)
class GpuClass:
    """Nodes whose GPUs are alike."""

    capability: ComputeCapability
    memory_mib: int
    nodes: int
    gpus_per_node: int

    def __str__(self) -> str:
        return f"compute capability {self.capability} with {self.memory_mib} MiB ({self.nodes} nodes)"


def resource_name_of(pool: PoolSpec) -> str | None:
    """Extended resource of one accelerator; None for a CPU pool."""
    if pool.accelerator is Accelerator.NONE:
        return None
    return pool.resource_name or labels.GPU_RESOURCE


def recognise(pool: PoolSpec, nodes: Sequence[Node] | None) -> Hardware | HardwareMissing:
    """The pool's hardware. `nodes` are all nodes of the cluster, or None where they may not be read."""
    resource = resource_name_of(pool)
    if pool.hardware is not None:
        origin = f"spec.pools[{pool.name}].hardware"
        if resource is None:
            return CpuFacts(memory_mib=pool.hardware.memory_mib, origin=origin)
        if pool.hardware.capability is None:
            return HardwareMissing("HardwareIncomplete", f"{origin} of a GPU pool needs computeCapability, e.g. 9.0")
        return GpuFacts(
            capability=pool.hardware.capability,
            memory_mib=pool.hardware.memory_mib,
            gpus_per_node=pool.gpus_per_replica or ASSUMED_GPUS_PER_NODE,
            nodes=None,
            origin=origin,
            labelled=False,
        )
    if nodes is None:
        return _without_node_permission(pool, resource)
    fitting, misses = _matching(pool, nodes, resource)
    if resource is None:
        return _cpu(pool, fitting, misses, len(nodes))
    return _gpu(pool, resource, fitting, misses, len(nodes))


def _without_node_permission(pool: PoolSpec, resource: str | None) -> Hardware | HardwareMissing:
    if resource is None:
        return CpuFacts(memory_mib=None, origin="a CPU pool; no node was read")
    return HardwareMissing(
        "NodesNotReadable",
        f"the operator may not read nodes, so the GPUs of pool {pool.name} are unknown: "
        "set spec.pools[].hardware {computeCapability, memoryMiB}, or let the operator list and watch nodes",
    )


def _matching(pool: PoolSpec, nodes: Sequence[Node], resource: str | None) -> tuple[list[Node], list[tuple[int, str]]]:
    """Nodes of the pool, and for every other one (number of obstacles, what keeps it out)."""
    fitting: list[Node] = []
    misses: list[tuple[int, str]] = []
    for node in nodes:
        obstacles = list(node.label_mismatch(pool.node_selector))
        taint = node.repelling_taint(pool, resource)
        if taint is not None:
            obstacles.append(f"taint {taint} is not tolerated")
        if resource is not None and node.amount(resource) == 0:
            obstacles.append(f"no allocatable {resource}")
        if obstacles:
            misses.append((len(obstacles), f"{node.name}: {', '.join(obstacles)}"[:COMPLAINT_LIMIT]))
        else:
            fitting.append(node)
    return fitting, misses


def _no_node(pool: PoolSpec, wanted: str, misses: list[tuple[int, str]], total: int) -> HardwareMissing:
    selector = ", ".join(f"{key}={value}" for key, value in pool.node_selector.items()) or "any labels"
    closest = "; ".join(text for _, text in sorted(misses)[:CLOSEST_NODES]) or "the cluster has no node"
    return HardwareMissing(
        "NoMatchingNodes",
        f"no node matches pool {pool.name}: looked for {wanted} with nodeSelector {selector} among {total} nodes. "
        f"Closest: {closest}. Change spec.pools[].nodeSelector or tolerations, or add such a node",
    )


def _cpu(pool: PoolSpec, fitting: list[Node], misses: list[tuple[int, str]], total: int) -> Hardware | HardwareMissing:
    if not fitting:
        return _no_node(pool, "a node", misses, total)
    largest = max(node.amount("memory") for node in fitting)
    return CpuFacts(
        memory_mib=largest // MIB if largest else None,
        origin=f"allocatable memory of the largest of {len(fitting)} matching nodes",
        nodes=len(fitting),
        ephemeral_storage=_account_for_disk(fitting),
    )


def _gpu(
    pool: PoolSpec, resource: str, fitting: list[Node], misses: list[tuple[int, str]], total: int
) -> Hardware | HardwareMissing:
    if not fitting:
        missing = _no_node(pool, f"allocatable {resource}", misses, total)
        if pool.node_selector:
            return missing
        return HardwareMissing(
            missing.reason,
            f"{missing.message}. To serve without a GPU, set spec.pools: [{{name: cpu, accelerator: None}}]",
        )
    classes, complaints = _classes(fitting, resource)
    if not classes:
        return HardwareMissing(
            "HardwareLabelsMissing",
            f"{len(fitting)} nodes of pool {pool.name} have {resource} but none says what it is. "
            f"Closest: {'; '.join(complaints[:CLOSEST_NODES])}. Install NVIDIA GPU feature discovery, or set "
            "spec.pools[].hardware {computeCapability, memoryMiB}",
        )
    best, *others = sorted(classes, key=lambda c: (c.capability, c.memory_mib, c.gpus_per_node), reverse=True)
    aside = f"; also seen: {', '.join(map(str, others))}; a nodeSelector chooses them" if others else ""
    return GpuFacts(
        capability=best.capability,
        memory_mib=best.memory_mib,
        gpus_per_node=best.gpus_per_node,
        nodes=best.nodes,
        origin=f"labels of {best.nodes} of {len(fitting)} nodes with {resource}{aside}",
        labelled=True,
        ephemeral_storage=_account_for_disk(fitting),
    )


def _account_for_disk(nodes: list[Node]) -> bool:
    return all(node.amount("ephemeral-storage") > 0 for node in nodes)


def _classes(fitting: list[Node], resource: str) -> tuple[list[GpuClass], list[str]]:
    """Hardware classes among the nodes, and why each node that is in none is in none."""
    members: defaultdict[tuple[ComputeCapability, int], list[int]] = defaultdict(list)
    complaints: list[str] = []
    for node in fitting:
        key = _class_of(node, resource)
        if isinstance(key, str):
            complaints.append(f"{node.name}: {key}"[:COMPLAINT_LIMIT])
        else:
            members[key].append(node.amount(resource))
    return [GpuClass(cap, mib, len(counts), max(counts)) for (cap, mib), counts in members.items()], complaints


def _class_of(node: Node, resource: str) -> tuple[ComputeCapability, int] | str:
    """(compute capability, MiB of one device), or what is wrong with the node's labels."""
    wanted = (labels.NODE_COMPUTE_MAJOR, labels.NODE_COMPUTE_MINOR, labels.node_memory_label(resource))
    missing = [key for key in wanted if key not in node.labels]
    if missing:
        return f"no label {', '.join(missing)}"
    odd = [f"{key}={node.labels[key]!r}" for key in wanted if not node.labels[key].isdecimal()]
    if odd:
        return f"not a whole number: {', '.join(odd)}"
    shared = node.labels.get(labels.NODE_GPU_REPLICAS, "1")
    if shared not in {"", "0", "1"}:
        return f"its GPUs are shared {shared} ways ({labels.NODE_GPU_REPLICAS}), so their memory is not a pod's own"
    major, minor, memory = (int(node.labels[key]) for key in wanted)
    return (ComputeCapability(major, minor), memory) if memory else f"{wanted[2]} is 0"
