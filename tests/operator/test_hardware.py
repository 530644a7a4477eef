"""Hardware is recognised from integers on nodes, or not at all with the reason."""

from __future__ import annotations

from octavo_operator.api.hardware import CpuFacts, GpuFacts, HardwareMissing
from octavo_operator.api.spec import HardwareSpec, PoolSpec, Toleration
from octavo_operator.hardware.node import Node
from octavo_operator.hardware.pool import recognise
from tests.operator.samples import gpu_node, node_body

GPU_POOL = PoolSpec(name="gpu")
CPU_POOL = PoolSpec.model_validate({"name": "cpu", "accelerator": "None"})


def missing(outcome: object) -> HardwareMissing:
    assert isinstance(outcome, HardwareMissing)
    return outcome


def test_labels_and_allocatable_give_capability_memory_and_count() -> None:
    facts = recognise(GPU_POOL, [gpu_node("n1", "9", "0", "143771")])
    assert isinstance(facts, GpuFacts)
    assert (facts.capability.major, facts.capability.minor) == (9, 0)
    assert facts.memory_mib == 143_771
    assert facts.gpus_per_node == 8
    assert facts.labelled


def test_the_newest_generation_is_taken_and_the_others_are_named() -> None:
    nodes = [gpu_node("a", "8", "0", "81920"), gpu_node("b", "10", "0", "183000"), gpu_node("c", "9", "0", "143771")]
    facts = recognise(GPU_POOL, nodes)
    assert isinstance(facts, GpuFacts)
    assert str(facts.capability) == "10.0"
    assert "8.0" in facts.origin
    assert "9.0" in facts.origin


def test_a_node_selector_chooses_the_class() -> None:
    nodes = [gpu_node("a", "8", "0", "81920", rack="one"), gpu_node("b", "10", "0", "183000", rack="two")]
    facts = recognise(PoolSpec(name="gpu", node_selector={"rack": "one"}), nodes)
    assert isinstance(facts, GpuFacts)
    assert str(facts.capability) == "8.0"


def test_no_matching_node_says_what_was_looked_for_and_what_was_seen() -> None:
    nodes = [gpu_node("near", "9", "0", "81559", rack="two"), Node.of(node_body("far"))]
    reason = missing(recognise(PoolSpec(name="gpu", node_selector={"rack": "one"}), nodes))
    assert reason.reason == "NoMatchingNodes"
    assert "rack=one" in reason.message
    assert reason.message.index("near") < reason.message.index("far"), "the closest node comes first"
    assert "rack is 'two', not 'one'" in reason.message
    assert "no allocatable nvidia.com/gpu" in reason.message


def test_a_gpu_pool_in_a_cluster_without_gpus_advises_a_cpu_pool() -> None:
    reason = missing(recognise(GPU_POOL, [Node.of(node_body("n1"))]))
    assert "nvidia.com/gpu" in reason.message
    assert "accelerator: None" in reason.message


def test_gpus_without_labels_are_not_guessed_at() -> None:
    node = Node.of(
        node_body("n1", labels={"nvidia.com/gpu.product": "NVIDIA-H200"}, allocatable={"nvidia.com/gpu": "8"})
    )
    reason = missing(recognise(GPU_POOL, [node]))
    assert reason.reason == "HardwareLabelsMissing"
    assert "nvidia.com/gpu.compute.major" in reason.message
    assert "spec.pools[].hardware" in reason.message


def test_odd_label_values_are_named() -> None:
    reason = missing(recognise(GPU_POOL, [gpu_node("n1", "nine", "0", "81559")]))
    assert "nvidia.com/gpu.compute.major='nine'" in reason.message


def test_shared_gpus_are_passed_over_because_their_memory_is_not_a_pods_own() -> None:
    reason = missing(recognise(GPU_POOL, [gpu_node("n1", "9", "0", "81559", **{"nvidia.com/gpu_replicas": "4"})]))
    assert "shared 4 ways" in reason.message


def test_a_taint_that_is_not_tolerated_keeps_a_node_out() -> None:
    body = node_body("n1", taints=[{"key": "team", "value": "other", "effect": "NoSchedule"}])
    reason = missing(recognise(CPU_POOL, [Node.of(body)]))
    assert "taint team=other:NoSchedule" in reason.message
    tolerant = CPU_POOL.model_copy(update={"tolerations": (Toleration(key="team", operator="Exists"),)})
    assert isinstance(recognise(tolerant, [Node.of(body)]), CpuFacts)


def test_the_gpu_taint_and_a_cordon_keep_no_gpu_pod_out() -> None:
    node = gpu_node("n1", "9", "0", "81559")
    taints = Node.of(
        node_body(
            "n1",
            taints=[
                {"key": "nvidia.com/gpu", "effect": "NoSchedule"},
                {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
            ],
        )
    ).taints
    tainted = Node(node.name, node.labels, taints, node.allocatable)
    assert isinstance(recognise(GPU_POOL, [tainted]), GpuFacts)


def test_hardware_in_the_spec_reads_no_node() -> None:
    pool = PoolSpec(name="gpu", hardware=HardwareSpec(compute_capability="9.0", memory_mib=143_771))
    facts = recognise(pool, None)
    assert isinstance(facts, GpuFacts)
    assert not facts.labelled
    assert facts.nodes is None


def test_without_node_permission_a_gpu_pool_says_what_to_set_and_a_cpu_pool_works() -> None:
    reason = missing(recognise(GPU_POOL, None))
    assert reason.reason == "NodesNotReadable"
    assert "spec.pools[].hardware" in reason.message
    assert isinstance(recognise(CPU_POOL, None), CpuFacts)


def test_a_cpu_pool_knows_the_memory_of_its_largest_node() -> None:
    small, large = node_body("s"), node_body("l", allocatable={"memory": "65536Mi"})
    facts = recognise(CPU_POOL, [Node.of(small), Node.of(large)])
    assert isinstance(facts, CpuFacts)
    assert facts.memory_mib == 65_536


def test_nodes_that_do_not_account_for_local_disk_are_noticed() -> None:
    body = node_body("n1")
    del body["status"]["allocatable"]["ephemeral-storage"]
    facts = recognise(CPU_POOL, [Node.of(body)])
    assert isinstance(facts, CpuFacts)
    assert not facts.ephemeral_storage
