"""The specification: plain torch, on every device."""

from __future__ import annotations

from collections.abc import Callable

from octavo_kernels.device import Device
from octavo_kernels.implementations.entry import WhyNot, function, instance
from octavo_kernels.operations import Operation
from octavo_kernels.registry import REFERENCE, Formats, Implementation, Shapes

WEIGHTS = frozenset({"BF16", "INT4", "FP8", "NVFP4"})
KV = frozenset({"BF16", "FP8"})


def _anywhere(_device: Device, _formats: Formats, _shapes: Shapes) -> str | None:
    return None


def _weights(_device: Device, formats: Formats, _shapes: Shapes) -> str | None:
    if formats.weights in WEIGHTS:
        return None
    return f"{formats.weights} weights have no reference; there is one for {', '.join(sorted(WEIGHTS))}"


def _pages(_device: Device, formats: Formats, _shapes: Shapes) -> str | None:
    if formats.kv in KV:
        return None
    return f"{formats.kv} pages have no reference; there is one for {', '.join(sorted(KV))}"


def _entry(operation: Operation, load: Callable[[], object], why_not: WhyNot = _anywhere) -> Implementation:
    reason = "plain torch, exact in float32 and the same bits in every batch; slow"
    return Implementation(operation, REFERENCE, load, reason, why_not)


IMPLEMENTATIONS = (
    _entry(Operation.PAGED_ATTENTION, function("reference.paged_attention", "paged_attention"), _pages),
    _entry(Operation.MLA_ATTENTION, function("reference.mla_attention", "mla_attention"), _pages),
    _entry(Operation.KV_WRITE, function("reference.kv_write", "kv_write"), _pages),
    _entry(Operation.MLA_WRITE, function("reference.kv_write", "mla_write"), _pages),
    _entry(Operation.CHECK_ROWS, function("reference.integrity", "check_rows")),
    _entry(Operation.CONCLUDE, function("reference.integrity", "conclude")),
    _entry(Operation.DIGEST_ROWS, function("reference.digest", "digest_rows")),
    _entry(Operation.DIGEST_PAGES, function("reference.digest", "digest_pages")),
    _entry(Operation.EXPERTS, instance("reference.moe", "ReferenceExperts"), _weights),
    _entry(Operation.ROUTER, function("reference.router", "softmax_top_k")),
    _entry(Operation.SIGMOID_ROUTER, function("reference.router", "sigmoid_top_k")),
    _entry(Operation.LINEAR, function("reference.linear", "linear")),
    _entry(Operation.QUANTISED_LINEAR, instance("reference.quantised_linear", "ReferenceQuantisedLinear"), _weights),
    _entry(Operation.RMS_NORM, function("reference.rms_norm", "rms_norm")),
    _entry(Operation.ROTARY_ANGLES, function("reference.rotary", "angles")),
    _entry(Operation.ROTATE, function("reference.rotary", "rotate")),
    _entry(Operation.SAMPLE, function("reference.sampling", "sample")),
    _entry(Operation.LOGPROBS, function("reference.sampling", "logprobs")),
)
