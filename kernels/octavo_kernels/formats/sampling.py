"""What a sampler is told about each row, and what it tells back."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LogitAdjustments:
    """Changes of single logits, sparse: n entries, at most one for each (row, token); sorted by row.

    Applied before anything else, in this order (as vLLM and the OpenAI API define them): where `count + in_prompt > 0`
    the repetition penalty divides a positive logit and multiplies a negative one; then
    `logit - count * frequency - (count > 0) * presence`; then `+ bias`.
    """

    rows: torch.Tensor
    """[n] int64."""
    tokens: torch.Tensor
    """[n] int64."""
    bias: torch.Tensor
    """[n] float32; -inf forbids a token."""
    count: torch.Tensor
    """[n] int32, how often the request has generated the token."""
    in_prompt: torch.Tensor
    """[n] bool."""
    repetition: torch.Tensor
    """[S] float32, one per sampled row; 1 leaves all as it is."""
    presence: torch.Tensor
    """[S] float32."""
    frequency: torch.Tensor
    """[S] float32."""


@dataclass(frozen=True)
class SamplingParameters:
    """One entry per sampled row; all tensors [S] on the device of the logits."""

    temperature: torch.Tensor
    """float32; below `GREEDY_BELOW` the most likely token is taken and the rest ignored."""
    top_k: torch.Tensor
    """int64; only the k most likely tokens; 0 keeps all."""
    top_p: torch.Tensor
    """float32 in (0, 1]; the fewest tokens whose probabilities sum to at least this."""
    seed: torch.Tensor
    """int64; the low 32 bits count."""
    position: torch.Tensor
    """int64; position of the token to be drawn within its request: the counter of the noise."""
    min_p: torch.Tensor | None = None
    """float32 in [0, 1]; only tokens at least this times as likely as the most likely one (after temperature); applied
    after top-k and top-p."""
    adjustments: LogitAdjustments | None = None


@dataclass(frozen=True)
class Logprobs:
    """Log-probabilities under the model's own distribution (temperature 1, nothing cut)."""

    chosen: torch.Tensor
    """[S] float32, of the drawn tokens."""
    top_ids: torch.Tensor
    """[S, n] int64, the n most likely tokens, most likely first."""
    top: torch.Tensor
    """[S, n] float32, theirs."""


GREEDY_BELOW = 1e-5
"""Temperatures below this take the most likely token, as 0 does. Noise could only decide between logits that differ by
less than 3e-4, and below 1e-38 the quotient of a logit and the temperature leaves the range of float32."""
