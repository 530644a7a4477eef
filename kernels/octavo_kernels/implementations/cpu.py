"""The C kernels: every operation on a CPU, for the instruction set that it has."""

from __future__ import annotations

from octavo_kernels.cpu import library
from octavo_kernels.device import CpuFeature, Device, DeviceKind
from octavo_kernels.formats.linear import Activations
from octavo_kernels.implementations import reference
from octavo_kernels.implementations.entry import WhyNot, function, instance
from octavo_kernels.operations import Operation
from octavo_kernels.registry import Formats, Implementation, Shapes

CPU = "cpu"
W4A8 = "cpu-w4a8"
C = "C for this CPU's instruction set, float32, the same bits in every batch"


def _on_a_cpu(device: Device, _formats: Formats, _shapes: Shapes) -> str | None:
    return "runs on a CPU" if device.kind is not DeviceKind.CPU else library.why_unavailable()


def _pages(device: Device, formats: Formats, shapes: Shapes) -> str | None:
    if (why_not := _on_a_cpu(device, formats, shapes)) is not None:
        return why_not
    return None if formats.kv in reference.KV else f"reads {' and '.join(sorted(reference.KV))} pages, not {formats.kv}"


def _weights(device: Device, formats: Formats, shapes: Shapes) -> str | None:
    if (why_not := _on_a_cpu(device, formats, shapes)) is not None:
        return why_not
    known = ", ".join(sorted(reference.WEIGHTS))
    return None if formats.weights in reference.WEIGHTS else f"is for {known} weights, not {formats.weights}"


def _integers(device: Device, formats: Formats, shapes: Shapes) -> str | None:
    if (why_not := _on_a_cpu(device, formats, shapes)) is not None:
        return why_not
    if formats.weights != "INT4":
        return f"is for INT4 weights, not {formats.weights}"
    if CpuFeature.AVX2 not in device.cpu_features:
        return "without AVX2 8-bit integers multiply no faster than float32"
    return None


def _entry(operation: Operation, name: str, why_not: WhyNot = _on_a_cpu) -> Implementation:
    """A function that is called as its file in `cpu/` or as said."""
    module, _, attribute = name.rpartition(".")
    return Implementation(operation, CPU, function(f"cpu.{module}", attribute), C, why_not)


def _experts(operation: Operation, module: str, name: str) -> tuple[Implementation, ...]:
    integers = (
        "activations rounded to 8 bits per group, exact integer dots: the fastest on this CPU; adds 1 to 3 % to "
        "the divergence that INT4 weights cause"
    )
    rounded = instance(f"cpu.{module}", name, Activations.QUANTISED)
    exact = instance(f"cpu.{module}", name, Activations.EXACT)
    return (
        Implementation(operation, W4A8, rounded, integers, _integers),
        Implementation(operation, CPU, exact, f"{C}; activations stay float32", _weights),
    )


IMPLEMENTATIONS = (
    _entry(Operation.PAGED_ATTENTION, "paged_attention.paged_attention", _pages),
    _entry(Operation.MLA_ATTENTION, "mla_attention.mla_attention", _pages),
    _entry(Operation.KV_WRITE, "kv_write.kv_write", _pages),
    _entry(Operation.MLA_WRITE, "kv_write.mla_write", _pages),
    _entry(Operation.CHECK_ROWS, "integrity.check_rows"),
    _entry(Operation.CONCLUDE, "integrity.conclude"),
    _entry(Operation.DIGEST_ROWS, "digest.digest_rows"),
    _entry(Operation.DIGEST_PAGES, "digest.digest_pages"),
    *_experts(Operation.EXPERTS, "experts", "CpuExperts"),
    _entry(Operation.ROUTER, "router.softmax_top_k"),
    _entry(Operation.SIGMOID_ROUTER, "router.sigmoid_top_k"),
    _entry(Operation.LINEAR, "linear.linear"),
    *_experts(Operation.QUANTISED_LINEAR, "quantised_linear", "CpuQuantisedLinear"),
    _entry(Operation.RMS_NORM, "rms_norm.rms_norm"),
    _entry(Operation.ROTARY_ANGLES, "rotary.angles"),
    _entry(Operation.ROTATE, "rotary.rotate"),
    _entry(Operation.SAMPLE, "sampling.sample"),
    _entry(Operation.LOGPROBS, "sampling.logprobs"),
)
