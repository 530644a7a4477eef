"""Sampling: penalties, temperature and cuts per request, reproducible for a seed whatever else is in the batch.

A token is drawn by the Gumbel-max trick: the argmax of `log p + g` with independent standard Gumbel noise g is a draw
from p. The noise is a hash of (seed, position, token id), not the next value of a shared generator, so a request's
draws do not depend on its neighbours, on preemption, or on how many tokens other requests have drawn.
"""

from __future__ import annotations

import torch

from octavo_kernels.errors import KernelInputError, require_dtype, require_shape
from octavo_kernels.formats.binding import mix_tensor
from octavo_kernels.formats.sampling import GREEDY_BELOW, LogitAdjustments, Logprobs, SamplingParameters

_UNIFORM_BITS = 32
"""Bits of the hash that make a uniform number; with half a step added it is never 0 or 1."""


def sample(logits: torch.Tensor, parameters: SamplingParameters) -> torch.Tensor:
    """Draw one token per row: logits [S, V] float32, result [S] int64, always in 0..V-1.

    In this order: adjustments of single logits, temperature, top-k, top-p, min-p, draw; without temperature the most
    likely token after the adjustments. Equally likely tokens rank by rising id.

    A NaN counts as minus infinity, a token that is never drawn; infinity as the largest float32. A row in which nothing
    can be drawn gives token 0, so that a model that broke down neither ends the process nor draws at random; whoever
    must know asks for the row's log-probabilities, which are NaN.
    """
    require_dtype("logits", logits, torch.float32)
    require_shape("logits", logits, None, None)
    require_shape("temperature", parameters.temperature, logits.shape[0])
    if parameters.adjustments is not None:
        logits = adjust(logits, parameters.adjustments)
    tokens = _numbers(logits).argmax(dim=-1)
    rows = torch.nonzero(parameters.temperature >= GREEDY_BELOW).flatten()
    if rows.numel():
        scaled = _numbers(logits[rows] / parameters.temperature[rows, None])
        kept = _cut(scaled, parameters.top_k[rows], parameters.top_p[rows])
        if parameters.min_p is not None:
            kept = _cut_unlikely(kept, parameters.min_p[rows])
        noise = _gumbel(parameters.seed[rows], parameters.position[rows], logits.shape[1])
        tokens[rows] = (kept + noise).argmax(dim=-1)
    return tokens


def adjust(logits: torch.Tensor, adjustments: LogitAdjustments) -> torch.Tensor:
    """Logits [S, V] with the penalties and biases of `LogitAdjustments`, in the order given there; a new tensor."""
    rows, tokens = adjustments.rows, adjustments.tokens
    require_shape("adjustments.repetition", adjustments.repetition, logits.shape[0])
    require_shape("adjustments.tokens", tokens, *rows.shape)
    _require_within("adjustments.rows", rows, logits.shape[0])
    _require_within("adjustments.tokens", tokens, logits.shape[1])
    values, count = logits[rows, tokens], adjustments.count
    repetition = torch.where((count > 0) | adjustments.in_prompt, adjustments.repetition[rows], 1.0)
    values = torch.where(values > 0, values / repetition, values * repetition)
    values = values - count * adjustments.frequency[rows] - (count > 0) * adjustments.presence[rows]
    return logits.index_put((rows, tokens), values + adjustments.bias)


def logprobs(logits: torch.Tensor, tokens: torch.Tensor, top: int) -> Logprobs:
    """Log-probabilities of drawn tokens and of the `top` most likely ones: logits [S, V] float32, tokens [S] int64.

    Equally likely tokens rank by rising id. A row with a NaN has NaN everywhere and ids as if it were minus infinity.
    """
    require_dtype("logits", logits, torch.float32)
    require_shape("logits", logits, None, None)
    require_shape("tokens", tokens, logits.shape[0])
    _require_within("tokens", tokens, logits.shape[1])
    every = logits.log_softmax(dim=-1)
    ids = _numbers(logits).sort(dim=-1, descending=True, stable=True).indices[:, :top]
    return Logprobs(chosen=every.gather(1, tokens[:, None])[:, 0], top_ids=ids, top=every.gather(1, ids))


def _require_within(name: str, indices: torch.Tensor, size: int) -> None:
    if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < size:
        raise KernelInputError(f"{name} has {int(indices.min())} to {int(indices.max())}, needed 0 to {size - 1}")


def _numbers(logits: torch.Tensor) -> torch.Tensor:
    return logits.nan_to_num(nan=-torch.inf, posinf=torch.finfo(torch.float32).max, neginf=-torch.inf)


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


def _cut_unlikely(kept: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Logits with the tokens less likely than `min_p` times the most likely one at minus infinity."""
    below = kept - kept.amax(dim=-1, keepdim=True) < min_p.log()[:, None]
    return kept.masked_fill(below, float("-inf"))


def _gumbel(seed: torch.Tensor, position: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Standard Gumbel noise [S, V] from (seed, position, token id)."""
    token = torch.arange(vocabulary, device=seed.device)
    words = mix_tensor(seed[:, None], position[:, None], token, torch.zeros_like(token))
    bits = words & ((1 << _UNIFORM_BITS) - 1)
    uniform = (bits.double() + 0.5) / (1 << _UNIFORM_BITS)
    return -torch.log(-torch.log(uniform)).float()
