"""What INT4 does to the experts: the product's own format, packed and unpacked again."""

from __future__ import annotations

import copy

import torch

from octavo_kernels.formats.int4 import dequantise, quantise

from .model import Experts, TinyMoe


@torch.no_grad()
def with_int4_experts(model: TinyMoe, group_size: int) -> TinyMoe:
    """A copy of ``model`` whose routed experts went through INT4 (f32 again); everything else is untouched.

    Raises QuantisationError when a projection's inputs are no multiple of ``group_size``.
    """
    quantised = copy.deepcopy(model)
    for module in quantised.modules():
        if isinstance(module, Experts):
            for parameter in (module.gate_up_proj, module.down_proj):
                parameter.copy_(dequantise(quantise(parameter, group_size)))
    return quantised
