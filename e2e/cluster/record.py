"""What is written down about a running cluster: enough to find and remove it without being told how it was made."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Network
from pathlib import Path

from e2e.cluster.config import ClusterConfig

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
KUBELET_SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""What a kubelet sets for the whole machine (pkg/kubelet/cm, `setupKernelTunables`); put back by `down`."""


@dataclass(frozen=True)
class Record:
    """The cluster that was started here."""

    name: str
    cache_dir: str
    node_count: int
    networks: Mapping[str, str]
    boot_id: str
    digests: Mapping[str, str]
    """Of each component's command and configuration."""
    programs: Mapping[str, str]
    """The file each command is run from, which outlives an edit of what the next start would run."""
    sysctls: Mapping[str, str] = field(default_factory=dict)
    """The machine's settings as they were."""

    def config(self) -> ClusterConfig:
        """The configuration it was started with."""
        return ClusterConfig(
            name=self.name,
            cache_dir=Path(self.cache_dir),
            node_network=IPv4Network(self.networks["node"]),
            pod_network=IPv4Network(self.networks["pod"]),
            service_network=IPv4Network(self.networks["service"]),
            node_count=self.node_count,
        )


def make(
    config: ClusterConfig, digests: Mapping[str, str], programs: Mapping[str, Path], before: Record | None
) -> Record:
    """The record of a cluster about to start; settings noted `before` are the machine's own and stay noted."""
    return Record(
        name=config.name,
        cache_dir=str(config.cache_dir),
        node_count=config.node_count,
        networks={name: str(network) for name, network in config.networks().items()},
        boot_id=BOOT_ID.read_text().strip(),
        digests=dict(digests),
        programs={name: str(path) for name, path in programs.items()},
        sysctls=before.sysctls if before else read_sysctls(),
    )


def write(record: Record, path: Path) -> None:
    """Keep it; whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(record), indent=1))
    fresh.replace(path)


def read(path: Path) -> Record | None:
    """The record of a cluster of this boot; None when there is none or what is there cannot be understood."""
    try:
        record = Record(**json.loads(path.read_text()))
        record.config()
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return record if record.boot_id == BOOT_ID.read_text().strip() else None


def read_sysctls() -> dict[str, str]:
    """The machine's settings that a kubelet changes."""
    paths = {name: Path("/proc/sys", name) for name in KUBELET_SYSCTLS}
    return {name: path.read_text().strip() for name, path in paths.items() if path.exists()}


def restore_sysctls(wanted: Mapping[str, str]) -> None:
    """Put back what differs."""
    for name, value in read_sysctls().items():
        if name in wanted and value != wanted[name]:
            Path("/proc/sys", name).write_text(wanted[name])
