from ipaddress import IPv4Network
from pathlib import Path

import pytest

from e2e.cluster.config import ClusterConfig, external_kubeconfig, from_environment
from e2e.cluster.errors import ClusterError


def test_each_node_has_an_address_and_a_half_of_the_pod_range_of_its_own() -> None:
    first, second = ClusterConfig(node_count=2).nodes
    assert (str(first.address), str(second.address)) == ("10.99.0.2", "10.99.0.3")
    assert (str(first.pod_network), str(second.pod_network)) == ("10.88.0.0/17", "10.88.128.0/17")
    assert first.cgroup != second.cgroup
    assert first.state_dir != second.state_dir


def test_the_second_node_changes_nothing_about_the_first() -> None:
    assert ClusterConfig(node_count=1).nodes[0] == ClusterConfig(node_count=2).nodes[0]


@pytest.mark.parametrize("count", [0, 3, -1])
def test_a_number_of_nodes_that_the_layout_cannot_hold_is_refused(count: int) -> None:
    with pytest.raises(ClusterError, match=f"NODES={count}"):
        ClusterConfig(node_count=count)


def test_networks_that_overlap_each_other_are_refused() -> None:
    with pytest.raises(ClusterError, match=r"10\.88\.0\.0/16 overlaps the service network 10\.88\.5\.0/24"):
        ClusterConfig(service_network=IPv4Network("10.88.5.0/24"))


def test_the_environment_chooses_cache_and_networks(tmp_path: Path) -> None:
    config = from_environment({"OCTAVO_CACHE": str(tmp_path), "OCTAVO_NODE_NETWORK": "172.31.9.0/24"})
    assert config.cache_dir == tmp_path
    assert config.registry == "172.31.9.1:5000"
    assert config.api_url == "https://172.31.9.2:6443"


def test_a_mistyped_network_is_named_with_its_value() -> None:
    with pytest.raises(ClusterError, match=r"OCTAVO_POD_NETWORK='10\.88/99'"):
        from_environment({"OCTAVO_POD_NETWORK": "10.88/99"})


def test_sockets_stay_below_the_kernels_limit_however_deep_the_cache_lies() -> None:
    config = ClusterConfig(cache_dir=Path("/" + "deep/" * 60))
    assert len(str(config.nodes[0].containerd_socket)) < 107


def test_a_missing_external_kubeconfig_is_an_error_and_not_a_new_cluster(tmp_path: Path) -> None:
    assert external_kubeconfig({}) is None
    with pytest.raises(ClusterError, match="no such file"):
        external_kubeconfig({"OCTAVO_KUBECONFIG": str(tmp_path / "absent")})
