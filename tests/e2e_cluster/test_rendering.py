import base64
import json
import tomllib
from pathlib import Path

from e2e.cluster.components import all_components, digest
from e2e.cluster.config import ClusterConfig
from e2e.cluster.rendering import cni, containerd, kube_proxy, kubeconfig, kubelet, registry, registry_hosts
from e2e.cluster.up import config_files

CONFIG = ClusterConfig(cache_dir=Path("/cache"), node_count=2)
FIRST, SECOND = CONFIG.nodes


class Programs(dict[str, Path]):
    def __missing__(self, name: str) -> Path:
        return Path("/bin") / name


def test_two_kubelets_share_neither_cgroup_nor_address_nor_runtime() -> None:
    one, two = (json.loads(kubelet(CONFIG, node, Path("/pki"))) for node in CONFIG.nodes)
    for field in ("cgroupRoot", "address", "containerRuntimeEndpoint", "tlsCertFile", "podLogsDir"):
        assert one[field] != two[field]


def test_a_kubelet_lets_nobody_in_unasked_and_takes_the_default_number_of_pods() -> None:
    config = json.loads(kubelet(CONFIG, FIRST, Path("/pki")))
    assert config["authentication"]["anonymous"] == {"enabled": False}
    assert config["authorization"] == {"mode": "Webhook"}
    assert "maxPods" not in config
    assert "featureGates" not in config


def test_containerd_is_given_valid_toml_with_the_local_registry_and_the_pinned_pause_image() -> None:
    config = tomllib.loads(containerd(FIRST, "10.99.0.1:5000/octavo/pause:abc", Path("/usr/sbin/runc")))
    images = config["plugins"]["io.containerd.cri.v1.images"]
    assert images["pinned_images"]["sandbox"] == "10.99.0.1:5000/octavo/pause:abc"
    hosts = config_files(CONFIG)[Path(images["registry"]["config_path"]) / "10.99.0.1:5000" / "hosts.toml"]
    assert tomllib.loads(hosts)["host"]["http://10.99.0.1:5000"]["capabilities"] == ["pull", "resolve"]
    assert hosts == registry_hosts(CONFIG)


def test_all_state_of_containers_and_pod_networks_lies_where_down_looks() -> None:
    config = tomllib.loads(containerd(FIRST, "pause", Path("/usr/sbin/runc")))
    assert config["plugins"]["io.containerd.cri.v1.runtime"]["netns_mounts_under_state_dir"] is True
    assert CONFIG.run_dir in Path(config["state"]).parents
    network = json.loads(cni(CONFIG, FIRST))
    assert CONFIG.state_dir in Path(network["plugins"][0]["ipam"]["dataDir"]).parents


def test_images_outlive_the_cluster() -> None:
    root = Path(tomllib.loads(containerd(FIRST, "pause", Path("/runc")))["root"])
    storage = Path(json.loads(registry(CONFIG))["storage"]["filesystem"]["rootdirectory"])
    assert CONFIG.state_dir not in [*root.parents, *storage.parents]


def test_kube_proxy_leaves_the_machines_connection_table_alone() -> None:
    assert json.loads(kube_proxy(CONFIG, SECOND, Path("/k")))["conntrack"] == {"maxPerCore": 0}


def test_a_kubeconfig_is_whole_by_itself() -> None:
    config = json.loads(kubeconfig("https://10.99.0.2:6443", b"authority", b"certificate", b"key"))
    assert base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]) == b"authority"
    assert base64.b64decode(config["users"][0]["user"]["client-key-data"]) == b"key"


def test_a_second_node_leaves_every_process_of_the_first_as_it_was() -> None:
    one = all_components(ClusterConfig(cache_dir=Path("/cache"), node_count=1), Programs())
    two = {component.name: component for component in all_components(CONFIG, Programs())}
    assert len(two) == len(one) + 3
    assert all(two[component.name].argv == component.argv for component in one)


def test_every_process_has_a_cgroup_of_its_own_below_the_clusters() -> None:
    cgroups = [component.cgroup(CONFIG) for component in all_components(CONFIG, Programs())]
    assert len(set(cgroups)) == len(cgroups)
    assert all(cgroup.startswith(f"{CONFIG.cgroup}/system/") for cgroup in cgroups)


def test_a_digest_tells_name_from_value() -> None:
    assert digest({"a": "bc"}) != digest({"ab": "c"})
    assert digest({"a": "1", "b": "2"}) == digest({"b": "2", "a": "1"})
