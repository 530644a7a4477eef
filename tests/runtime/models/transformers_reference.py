"""Hugging Face transformers as the other witness: float32 from the BF16 weights, KV rounded as our pages round it.

Two correct float32 computations differ in the seventh digit, and a key that lies that close to the middle between two
stored values is rounded up by one and down by the other: a step of 2**-8 (BF16) or 2**-4 (FP8), which moves logits by
hundredths. That is no error of either side, but it would drown real ones. So where the runtime's stored value is as
good a rounding of the reference's own key or value as the reference's, to within TIE, the reference takes it. A stored
value that is anything else is not taken, and shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, Qwen3MoeForCausalLM

from octavo_runtime.contract.precision import KvFormat

E4M3_MAX = 448.0

TIE = 1e-4
"""Relative: how much further from the exact key the runtime's stored one may lie than the reference's own rounding.
Float32 computations of a key differ by about 1e-6; the nearest wrong value is 30 times further off than this."""

StoredKv = list[tuple[torch.Tensor, torch.Tensor]]
"""Per layer, keys and values of one request as its pages hold them: [tokens, kv_heads, head_dim] float32."""


class RoundingCache(DynamicCache):
    """A cache that gives back what pages of the given format would: torch's own rounding, not Octavo's."""

    def __init__(self, kv: KvFormat, stored: StoredKv) -> None:
        super().__init__()
        self.kv = kv
        self.stored = stored
        self.ties = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Round new keys and values [1, kv_heads, tokens, head_dim], then store them."""
        keys, values = (states.transpose(0, 1)[None] for states in self.stored[layer_idx])
        return super().update(
            self._round(key_states, keys), self._round(value_states, values), layer_idx, *args, **kwargs
        )

    def _round(self, exact: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
        if self.kv is KvFormat.FP8:
            nearest = exact.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float()
        else:
            nearest = exact.bfloat16().float()
        assert stored.shape == nearest.shape
        tie = (stored != nearest) & ((stored - exact).abs() <= (nearest - exact).abs() + TIE * exact.abs())
        self.ties += int(tie.sum())
        return torch.where(tie, stored, nearest)


class TransformersReference:
    """One loaded checkpoint."""

    def __init__(self, path: Path, kv: KvFormat) -> None:
        self.model = Qwen3MoeForCausalLM.from_pretrained(path, dtype=torch.float32)
        self.model.train(False)
        self.kv = kv
        self.ties = 0
        """Stored elements that were taken from the runtime, so far."""

    @torch.inference_mode()
    def logits(self, tokens: list[int], stored: StoredKv) -> torch.Tensor:
        """Logits after each token: [n, V]; `stored` is what the runtime cached of the same tokens."""
        cache = RoundingCache(self.kv, stored)
        logits: torch.Tensor = self.model(torch.tensor([tokens]), cache=cache).logits
        self.ties += cache.ties
        return logits[0]
