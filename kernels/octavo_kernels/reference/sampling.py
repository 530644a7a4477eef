"""Sampling: temperature, top-k and top-p per request, reproducible for a seed whatever else is in the batch.

A token is drawn by the Gumbel-max trick: the argmax of `log p + g` with independent standard Gumbel noise g is a draw
from p. The noise is a hash of (seed, position, token id), not the next value of a shared generator, so a request's
draws do not depend on its neighbours, on preemption, or on how many tokens other requests have drawn.
"""

from __future__ import annotations

import torch

from octavo_kernels.errors import require_dtype, require_shape
from octavo_kernels.formats.binding import mix_tensor
from octavo_kernels.formats.sampling import GREEDY_BELOW, Logprobs, SamplingParameters

_UNIFORM_BITS = 32
"""Bits of the hash that make a uniform number; with half a step added it is never 0 or 1."""


def sample(logits: torch.Tensor, parameters: SamplingParameters) -> torch.Tensor:
    """Draw one token per row: logits [S, V] float32, result [S] int64."""
    require_dtype("logits", logits, torch.float32)
    require_shape("temperature", parameters.temperature, logits.shape[0])
    tokens = logits.argmax(dim=-1)
    rows = torch.nonzero(parameters.temperature >= GREEDY_BELOW).flatten()
    if rows.numel():
        scaled = logits[rows] / parameters.temperature[rows, None]
        kept = _cut(scaled, parameters.top_k[rows], parameters.top_p[rows])
        noise = _gumbel(parameters.seed[rows], parameters.position[rows], logits.shape[1])
        tokens[rows] = (kept + noise).argmax(dim=-1)
    return tokens


def logprobs(logits: torch.Tensor, tokens: torch.Tensor, top: int) -> Logprobs:
    """Log-probabilities of drawn tokens and of the `top` most likely ones: logits [S, V] float32, tokens [S] int64."""
    require_dtype("logits", logits, torch.float32)
    every = logits.log_softmax(dim=-1)
    best, ids = every.topk(min(top, logits.shape[1]), dim=-1)
    return Logprobs(chosen=every.gather(1, tokens[:, None])[:, 0], top_ids=ids, top=best)


def _cut(scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Logits with the tokens outside top-k, then outside top-p, at minus infinity."""
    ordered, ids = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(scaled.shape[1], device=scaled.device)
    beyond_k = (top_k > 0)[:, None] & (rank >= top_k[:, None])
    ordered = ordered.masked_fill(beyond_k, float("-inf"))
    shares = ordered.softmax(dim=-1)
    # The probability before a token, not including it: the token that crosses top_p stays.
    before = shares.cumsum(dim=-1) - shares
    beyond_p = (top_p < 1)[:, None] & (before >= top_p[:, None])
    beyond_p[:, 0] = False
    ordered = ordered.masked_fill(beyond_p, float("-inf"))
    return torch.empty_like(scaled).scatter_(1, ids, ordered)


def _gumbel(seed: torch.Tensor, position: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Standard Gumbel noise [S, V] from (seed, position, token id)."""
    token = torch.arange(vocabulary, device=seed.device)
    words = mix_tensor(seed[:, None], position[:, None], token, torch.zeros_like(token))
    bits = words & ((1 << _UNIFORM_BITS) - 1)
    uniform = (bits.double() + 0.5) / (1 << _UNIFORM_BITS)
    return -torch.log(-torch.log(uniform)).float()
