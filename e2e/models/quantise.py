"""INT4 experts, simulated: rounded to nearest in groups along the input dimension and multiplied out again."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from .model import Experts, TinyMoe


def round_to_int4(weights: Tensor, group_size: int) -> Tensor:
    """Symmetric INT4 of ``weights`` [..., inputs] f32: integers -8..7 times the group's largest |weight| / 7.

    The scale is kept in BF16, as stored formats keep it. Raises ValueError when the groups do not tile the inputs.
    """
    if weights.shape[-1] % group_size:
        raise ValueError(f"{weights.shape[-1]} inputs are no multiple of the group size {group_size}")
    groups = weights.reshape(*weights.shape[:-1], -1, group_size)
    scale = (groups.abs().amax(-1, keepdim=True) / 7).to(torch.bfloat16).float()
    scale = scale.clamp_min(torch.finfo(torch.float32).tiny)
    rounded: Tensor = groups.div(scale).round().clamp(-8, 7) * scale
    return rounded.flatten(-2)


@torch.no_grad()
def with_int4_experts(model: TinyMoe, group_size: int) -> TinyMoe:
    """A copy of ``model`` whose routed experts went through INT4; everything else is untouched."""
    quantised = copy.deepcopy(model)
    for module in quantised.modules():
        if isinstance(module, Experts):
            for parameter in (module.gate_up_proj, module.down_proj):
                parameter.copy_(round_to_int4(parameter, group_size))
    return quantised
