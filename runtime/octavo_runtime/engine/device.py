"""What this process runs on, and whether it is what the plan was made for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from octavo_runtime.contract.precision import ComputeCapability
from octavo_runtime.contract.refused import Refused

MIB = 1 << 20
MEMORY_TOLERANCE = 0.03
"""The driver keeps part of the memory that a node label counts; classes of one chip differ by far more."""

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True)
class DeviceFacts:
    """The device of rank 0."""

    torch_device: str
    """`cpu` or `cuda:0`."""
    name: str
    capability: ComputeCapability | None
    """None on a CPU."""
    memory_bytes: int
    """Of the device; on a CPU the machine's or, when smaller, the container's limit."""
    available_bytes: int
    """What of it is free now."""


def probe() -> DeviceFacts:
    """The first CUDA device, else the CPU."""
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        free, total = torch.cuda.mem_get_info(0)
        capability = ComputeCapability(properties.major, properties.minor)
        return DeviceFacts("cuda:0", properties.name, capability, total, free)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = _available_bytes()
    limit = _container_limit_bytes()
    if limit is not None and limit < total:
        total, available = limit, min(available, limit)
    return DeviceFacts("cpu", "CPU", None, total, available)


def check_expected(device: DeviceFacts, capability: ComputeCapability | None, memory_mib: int | None) -> None:
    """Refuse to load on a device that the plan was not made for; None expects nothing."""
    if capability is not None and device.capability != capability:
        found = "a CPU" if device.capability is None else f"compute capability {device.capability} ({device.name})"
        raise Refused(
            "UnexpectedDevice",
            f"--expect-compute-capability {capability}, but this is {found}: the plan was made for another device; "
            "schedule the pod on the planned nodes, or plan again",
        )
    found_mib = device.memory_bytes // MIB
    if memory_mib is not None and not _memory_as_planned(device, found_mib, memory_mib):
        raise Refused(
            "UnexpectedDevice",
            f"--expect-memory-mib {memory_mib}, but {device.name} has {found_mib} MiB: the plan was made for another "
            "device; schedule the pod on the planned nodes, or plan again",
        )


def _memory_as_planned(device: DeviceFacts, found_mib: int, planned_mib: int) -> bool:
    """Within the tolerance; a CPU may also have more, since the plan's bytes are allocated in any case."""
    if found_mib < planned_mib * (1 - MEMORY_TOLERANCE):
        return False
    return device.capability is None or found_mib <= planned_mib * (1 + MEMORY_TOLERANCE)


def resident_bytes(device: DeviceFacts) -> int:
    """Memory that this process uses now: of the device, or resident in the machine's."""
    if device.capability is not None:
        return torch.cuda.memory_allocated(0)
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _container_limit_bytes() -> int | None:
    for path in _CGROUP_LIMITS:
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdecimal():
            return int(text)
    return None
