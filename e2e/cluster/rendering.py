"""The configuration files of the components, as text. Pure: what decides them is in the arguments.

JSON is YAML, so the kubelet and kube-proxy are given JSON and no YAML library is needed.
"""

import base64
import json
from pathlib import Path

from e2e.cluster.config import ClusterConfig, Node

CLUSTER_DOMAIN = "cluster.local"


def kubeconfig(server: str, authority: bytes, certificate: bytes, key: bytes) -> str:
    """Access for one user, self-contained so that the file can be copied."""
    return _json(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "octavo",
            "contexts": [{"name": "octavo", "context": {"cluster": "octavo", "user": "octavo"}}],
            "clusters": [
                {"name": "octavo", "cluster": {"server": server, "certificate-authority-data": _base64(authority)}}
            ],
            "users": [
                {
                    "name": "octavo",
                    "user": {"client-certificate-data": _base64(certificate), "client-key-data": _base64(key)},
                }
            ],
        }
    )


def kubelet(config: ClusterConfig, node: Node, pki: Path) -> str:
    """KubeletConfiguration: an ordinary node, except for what a bare machine cannot do.

    Cgroup version 1 and swap are tolerated, and node allocatable is not enforced because that needs a cgroup for the
    system that is not ours to make.
    """
    return _json(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": str(node.address),
            "healthzBindAddress": str(node.address),
            "authentication": {
                "x509": {"clientCAFile": str(pki / "ca.crt")},
                "webhook": {"enabled": True},
                "anonymous": {"enabled": False},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki / f"{node.name}.crt"),
            "tlsPrivateKeyFile": str(pki / f"{node.name}.key"),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{node.cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "containerRuntimeEndpoint": f"unix://{node.containerd_socket}",
            "podLogsDir": str(node.state_dir / "pod-logs"),
            "volumePluginDir": str(node.state_dir / "volume-plugins"),
            "resolvConf": "/etc/resolv.conf",
            # Nothing answers there. It gives pods the resolv.conf of an ordinary cluster, and network.py sees to it
            # that a question fails at once; with none at all every pod would carry a warning.
            "clusterDNS": [str(config.service_network[10])],
            "clusterDomain": CLUSTER_DOMAIN,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "serializeImagePulls": False,
            "registryPullQPS": 0,
        }
    )


def kube_proxy(config: ClusterConfig, node: Node, kubeconfig_path: Path) -> str:
    """KubeProxyConfiguration; conntrack limits belong to the whole machine and stay as they are."""
    return _json(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(kubeconfig_path)},
            "mode": "iptables",
            "clusterCIDR": str(config.pod_network),
            "bindAddress": str(node.address),
            "healthzBindAddress": f"{node.address}:10256",
            "metricsBindAddress": f"{node.address}:10249",
            "hostnameOverride": node.name,
            "conntrack": {"maxPerCore": 0},
        }
    )


def cni(config: ClusterConfig, node: Node) -> str:
    """The pod network: a bridge in the node's namespace; its state is kept with the node so that `down` removes it."""
    ranges = [[{"subnet": str(node.pod_network)}]]
    ipam = {
        "type": "host-local",
        "ranges": ranges,
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(node.state_dir / "cni-addresses"),
    }
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": ipam,
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return _json({"cniVersion": "1.0.0", "name": config.pod_network_name, "plugins": [bridge, portmap]})


def containerd(node: Node, pause_image: str, runc: Path) -> str:
    """containerd's configuration, version 3.

    `restrict_oom_score_adj`: without CAP_SYS_RESOURCE (a container, some build machines) runc may not lower it and
    every pod would fail with "can't get final child's PID from pipe". Pod network namespaces lie below our own folder
    so that `down` finds them. Plug-ins that would write outside it (opt, NRI) are off.
    Packed layers are dropped once unpacked: the registry has them, and they are gigabytes.
    """
    return f"""version = 3
root = {_toml(node.store_dir / "containerd")}
state = {_toml(node.run_dir / "containerd")}
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing"]

[grpc]
  address = {_toml(node.containerd_socket)}

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    use_internal_loopback = true
    conf_dir = {_toml(node.state_dir / "cni")}
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
      BinaryName = {_toml(runc)}
      Root = {_toml(node.run_dir / "runc")}

[plugins."io.containerd.cri.v1.images"]
  discard_unpacked_layers = true
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = {_toml(pause_image)}
[plugins."io.containerd.cri.v1.images".registry]
  config_path = {_toml(node.state_dir / "registries")}
"""


def registry_hosts(config: ClusterConfig) -> str:
    """containerd's hosts.toml: the local registry speaks plain HTTP."""
    url = f"http://{config.registry}"
    return f'server = {_toml(url)}\n[host.{_toml(url)}]\n  capabilities = ["pull", "resolve"]\n'


def registry(config: ClusterConfig) -> str:
    """docker-registry's configuration: storage in the cache, deletion allowed so that old images can be pruned."""
    return _json(
        {
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(config.registry_dir)}, "delete": {"enabled": True}},
            "http": {"addr": config.registry, "headers": {"X-Content-Type-Options": ["nosniff"]}},
        }
    )


def _toml(value: Path | str) -> str:
    """A TOML basic string, which for what we write is a JSON string."""
    return json.dumps(str(value))


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
