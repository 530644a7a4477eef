"""The Triton kernels: every operation on CUDA devices from compute capability 8.0."""

from __future__ import annotations

import importlib.util

from octavo_kernels.device import Device
from octavo_kernels.implementations import reference
from octavo_kernels.implementations.entry import WhyNot, function, instance
from octavo_kernels.operations import Operation
from octavo_kernels.registry import Formats, Implementation, Shapes
from octavo_kernels.triton.experts_tiles import has_fp8, has_nvfp4

TRITON = "triton"
OLDEST = (8, 0)
"""Before it there is no bfloat16 in the tensor cores."""
LARGEST_HEAD, LARGEST_LATENT = 256, 512
SIZES_DIVIDE = 32
INT4_GROUPS = (32, 64, 128)
BFLOAT16 = "bfloat16 products, float32 sums"


def _on_cuda(device: Device, _formats: Formats, _shapes: Shapes) -> str | None:
    capability = device.compute_capability
    if capability is None:
        return "runs on a CUDA device"
    if capability < OLDEST:
        return "needs compute capability 8.0 or newer, for bfloat16 matrix products"
    return None if importlib.util.find_spec("triton") else "Triton is not installed"


def _pages(device: Device, formats: Formats, shapes: Shapes) -> str | None:
    if (why_not := _on_cuda(device, formats, shapes)) is not None:
        return why_not
    return None if formats.kv in reference.KV else f"reads {' and '.join(sorted(reference.KV))} pages, not {formats.kv}"


def _attention(device: Device, formats: Formats, shapes: Shapes) -> str | None:
    if (why_not := _pages(device, formats, shapes)) is not None:
        return why_not
    if shapes.head_dim is not None and shapes.head_dim > LARGEST_HEAD:
        return f"takes head dimensions up to {LARGEST_HEAD}, not {shapes.head_dim}"
    return None


def _latent_attention(device: Device, formats: Formats, shapes: Shapes) -> str | None:
    if (why_not := _pages(device, formats, shapes)) is not None:
        return why_not
    if shapes.head_dim is not None and shapes.head_dim > LARGEST_LATENT:
        return f"takes latent dimensions up to {LARGEST_LATENT}, not {shapes.head_dim}"
    return None


def _weights(*names: str) -> WhyNot:
    def why_not(device: Device, formats: Formats, shapes: Shapes) -> str | None:
        if (why_not := _on_cuda(device, formats, shapes)) is not None:
            return why_not
        if formats.weights not in names:
            return f"is for {' and '.join(names)} weights, not {formats.weights}"
        for name, size in (("hidden size", shapes.hidden), ("intermediate size", shapes.intermediate)):
            if size is not None and size % SIZES_DIVIDE:
                return f"takes sizes that divide by {SIZES_DIVIDE}; the {name} is {size}"
        if formats.weights == "INT4" and shapes.group_size not in (None, *INT4_GROUPS):
            return f"takes INT4 groups of {', '.join(map(str, INT4_GROUPS))}, not {shapes.group_size}"
        return None

    return why_not


def _fp8_products(device: Device, formats: Formats, shapes: Shapes) -> str | None:
    if (why_not := _weights("FP8")(device, formats, shapes)) is not None:
        return why_not
    return None if has_fp8(_number(device)) else f"{device} has no FP8 matrix products that Triton reaches"


def _fp8_widened(device: Device, formats: Formats, shapes: Shapes) -> str | None:
    if (why_not := _weights("FP8")(device, formats, shapes)) is not None:
        return why_not
    return f"{device} has FP8 matrix products" if has_fp8(_number(device)) else None


def _nvfp4_products(device: Device, formats: Formats, shapes: Shapes) -> str | None:
    if (why_not := _weights("NVFP4")(device, formats, shapes)) is not None:
        return why_not
    return None if has_nvfp4(_number(device)) else f"{device} has no NVFP4 matrix products that Triton reaches"


def _nvfp4_widened(device: Device, formats: Formats, shapes: Shapes) -> str | None:
    if (why_not := _weights("NVFP4")(device, formats, shapes)) is not None:
        return why_not
    return f"{device} has NVFP4 matrix products" if has_nvfp4(_number(device)) else None


def _number(device: Device) -> int:
    major, minor = device.compute_capability or (0, 0)
    return major * 10 + minor


def _entry(operation: Operation, name: str, reason: str, why_not: WhyNot = _on_cuda) -> Implementation:
    module, _, attribute = name.rpartition(".")
    return Implementation(operation, TRITON, function(f"triton.{module}", attribute), reason, why_not)


def _by_format(operation: Operation, module: str, name: str) -> tuple[Implementation, ...]:
    load = instance(f"triton.{module}", name)
    ways = (
        ("int4-w4a16", f"INT4 weights unpacked in registers, {BFLOAT16}", _weights("INT4")),
        ("fp8-w8a8", "FP8 products, activations rounded per 128, float32 sums of each 128 of K", _fp8_products),
        ("nvfp4-w4a4", "NVFP4 products of weights with input scales; others widened in registers", _nvfp4_products),
        ("fp8-w8a16", f"FP8 weights widened in registers, {BFLOAT16}", _fp8_widened),
        ("nvfp4-w4a16", f"NVFP4 weights widened in registers, {BFLOAT16}", _nvfp4_widened),
        ("bf16", BFLOAT16, _weights("BF16")),
    )
    return tuple(Implementation(operation, f"{TRITON}-{way}", load, reason, why_not) for way, reason, why_not in ways)


_ATTENTION = f"pages read in place, long contexts split between programs, {BFLOAT16}"
_SAME_BYTES = "rounds in integers: the same bytes on every generation"
_EXACT = "exact, one launch"
IMPLEMENTATIONS = (
    _entry(Operation.PAGED_ATTENTION, "paged_attention.paged_attention", _ATTENTION, _attention),
    _entry(Operation.MLA_ATTENTION, "mla_attention.mla_attention", _ATTENTION, _latent_attention),
    _entry(Operation.KV_WRITE, "kv_write.kv_write", _SAME_BYTES, _pages),
    _entry(Operation.MLA_WRITE, "kv_write.mla_write", _SAME_BYTES, _pages),
    _entry(Operation.CHECK_ROWS, "integrity.check_rows", _EXACT),
    _entry(Operation.CONCLUDE, "integrity.conclude", _EXACT),
    _entry(Operation.DIGEST_ROWS, "digest.digest_rows", _EXACT),
    _entry(Operation.DIGEST_PAGES, "digest.digest_pages", _EXACT),
    *_by_format(Operation.EXPERTS, "experts", "TritonExperts"),
    _entry(Operation.ROUTER, "router.softmax_top_k", "one launch, float32"),
    _entry(Operation.SIGMOID_ROUTER, "router.sigmoid_top_k", "one launch, float32"),
    _entry(Operation.LINEAR, "linear.linear", f"few rows split along K, many rows by torch's own product; {BFLOAT16}"),
    *_by_format(Operation.QUANTISED_LINEAR, "quantised_linear", "TritonQuantisedLinear"),
    _entry(Operation.RMS_NORM, "rms_norm.rms_norm", "one launch, float32"),
    _entry(Operation.ROTARY_ANGLES, "rotary.angles", "torch, once per step"),
    _entry(Operation.ROTATE, "rotary.rotate", "one launch, float32"),
    _entry(Operation.SAMPLE, "sampling.sample", "no sort of the vocabulary, the reference's noise"),
    _entry(Operation.LOGPROBS, "sampling_logprobs.logprobs", "one launch, float32"),
)
