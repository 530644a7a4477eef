"""What a device can do, as far as the choice of a kernel depends on it. Never a product name."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch


class DeviceKind(StrEnum):
    """Where kernels run."""

    CPU = "cpu"
    CUDA = "cuda"


class CpuFeature(StrEnum):
    """Instruction sets that kernels ask for; the values are the kernel's own flag names (/proc/cpuinfo)."""

    AVX2 = "avx2"
    AVX512 = "avx512f"
    AVX512_VNNI = "avx512_vnni"
    AVX512_BF16 = "avx512_bf16"
    AMX_BF16 = "amx_bf16"


class DeviceError(ValueError):
    """A device description that cannot be understood; the message shows the text and what it should look like."""


@dataclass(frozen=True)
class Device:
    """A CUDA device by its compute capability, or a CPU by its features."""

    kind: DeviceKind
    compute_capability: tuple[int, int] | None = None
    """(major, minor); None on a CPU."""
    cpu_features: frozenset[CpuFeature] = frozenset()

    @classmethod
    def cpu(cls) -> Device:
        """This machine's CPU."""
        return cls(DeviceKind.CPU, cpu_features=detected_cpu_features())

    @classmethod
    def of(cls, device: torch.device) -> Device:
        """The device that torch means; raises DeviceError for kinds other than cpu and cuda."""
        match device.type:
            case "cpu":
                return cls.cpu()
            case "cuda":
                return cls(DeviceKind.CUDA, compute_capability=torch.cuda.get_device_capability(device))
            case other:
                raise DeviceError(f"device {other!r} has no kernels; use cpu or cuda")

    @classmethod
    def parse(cls, text: str) -> Device:
        """`cpu`, or `sm_90`, `sm_103`: last digit the minor version; raises DeviceError showing the text."""
        if text == "cpu":
            return cls.cpu()
        match = re.fullmatch(r"sm_(\d+)(\d)", text)
        if match is None:
            raise DeviceError(f"device must look like cpu or sm_90, got {text!r}")
        return cls(DeviceKind.CUDA, compute_capability=(int(match[1]), int(match[2])))

    def __str__(self) -> str:
        if self.compute_capability is not None:
            return "compute capability {}.{}".format(*self.compute_capability)
        features = ", ".join(feature.name for feature in CpuFeature if feature in self.cpu_features)
        return f"CPU with {features}" if features else "CPU without AVX2"


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Feature names of this CPU according to the Linux kernel; empty where /proc/cpuinfo does not say."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return frozenset()
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", info.read_text(encoding="utf-8"), re.MULTILINE)
    return frozenset(line[1].split()) if line else frozenset()


def detected_cpu_features() -> frozenset[CpuFeature]:
    """Those features of this CPU that kernels ask for."""
    return frozenset(feature for feature in CpuFeature if feature.value in cpu_flags())
