"""The DeepSeek-V3 router and YaRN equal what the transformers library computes.

Slow by its imports alone, which take some fifteen seconds.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.reference.rotary import (
    angles,
    rotate,
    yarn_amplitude,
    yarn_frequencies,
    yarn_mscale,
)
from octavo_kernels.reference.router import sigmoid_top_k
from tests.kernels.close import assert_close

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=60)
@given(
    tokens=st.integers(0, 5),
    groups=st.integers(1, 5),
    size=st.integers(2, 9),
    renormalise=st.booleans(),
    data=st.data(),
)
def test_the_sigmoid_router(tokens: int, groups: int, size: int, renormalise: bool, data: st.DataObject) -> None:
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

    top_groups = data.draw(st.integers(1, groups))
    top_k = data.draw(st.integers(1, top_groups * size))
    experts = groups * size
    theirs = DeepseekV3TopkRouter(
        DeepseekV3Config(
            num_experts_per_tok=top_k,
            n_routed_experts=experts,
            hidden_size=experts,
            routed_scaling_factor=2.5,
            n_group=groups,
            topk_group=top_groups,
            norm_topk_prob=renormalise,
        )
    )
    logits, bias = random(tokens, experts) * 3, random(experts, seed=1)
    theirs.weight.data.copy_(torch.eye(experts))
    theirs.e_score_correction_bias.copy_(bias)
    with torch.no_grad():
        _, their_weights, their_ids = theirs(logits)
    ids, weights = sigmoid_top_k(
        logits, bias, top_k, groups=groups, top_groups=top_groups, renormalise=renormalise, scaling=2.5
    )
    order, their_order = ids.sort(dim=1), their_ids.sort(dim=1)
    assert torch.equal(order.values, their_order.values)
    assert_close(weights.gather(1, order.indices), their_weights.gather(1, their_order.indices), within=1e-6)


@pytest.mark.parametrize("mscales", [(None, None), (1.0, 1.0), (0.707, 1.414)])
@pytest.mark.parametrize("betas", [(32.0, 1.0), (8.0, 2.0)])
@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(("dim", "theta", "factor"), [(64, 1e4, 40.0), (128, 1e6, 4.0), (10, 5e4, 64.0)])
def test_yarn(
    dim: int,
    theta: float,
    factor: float,
    truncate: bool,
    betas: tuple[float, float],
    mscales: tuple[float | None, float | None],
) -> None:
    from transformers import Qwen3Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": factor,
        "original_max_position_embeddings": 4096,
        "beta_fast": betas[0],
        "beta_slow": betas[1],
        "truncate": truncate,
    }
    if mscales[0] is not None:
        parameters |= {"mscale": mscales[0], "mscale_all_dim": mscales[1]}
    config = Qwen3Config(
        head_dim=dim, max_position_embeddings=int(4096 * factor), rope_parameters=parameters, num_hidden_layers=1
    )
    frequencies, amplitude = ROPE_INIT_FUNCTIONS["yarn"](config, CPU)
    ours = yarn_frequencies(
        dim,
        theta,
        CPU,
        factor=factor,
        original_context=4096,
        beta_fast=betas[0],
        beta_slow=betas[1],
        truncate=truncate,
    )
    assert_close(ours / frequencies, torch.ones(dim // 2), within=1e-5)
    assert yarn_amplitude(factor, *mscales) == pytest.approx(amplitude, rel=1e-6)


def test_the_softmax_factor_and_both_pairings() -> None:
    deepseek: Any = importlib.import_module("transformers.models.deepseek_v3.modeling_deepseek_v3")
    scaling = deepseek.yarn_apply_mscale({"rope_type": "yarn", "factor": 40.0, "mscale_all_dim": 0.8}, 0.125)
    assert 0.125 * yarn_mscale(40.0, 0.8) ** 2 == pytest.approx(scaling)
    x = random(6, 2, 8)
    cosine, sine = angles(torch.arange(6) * 100, yarn_frequencies(8, 1e4, CPU, factor=4.0, original_context=64))
    twice_cosine, twice_sine = torch.cat((cosine, cosine), -1), torch.cat((sine, sine), -1)
    half, _ = deepseek.apply_rotary_pos_emb(x, x, twice_cosine, twice_sine)
    assert_close(rotate(x, cosine, sine), half, within=1e-6)
    # It takes interleaved pairs apart, which scores do not see as keys and queries are reordered alike.
    apart, _ = deepseek.apply_rotary_pos_emb_interleave(x, x, twice_cosine, twice_sine)
    together = rotate(x, cosine, sine, interleaved=True)
    assert_close(torch.cat((together[..., 0::2], together[..., 1::2]), -1), apart, within=1e-6)
