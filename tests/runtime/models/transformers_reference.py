"""Hugging Face transformers as the other witness: float32 from the BF16 weights, KV rounded as our pages round it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, Qwen3MoeForCausalLM

from octavo_runtime.contract.precision import KvFormat

E4M3_MAX = 448.0


class RoundingCache(DynamicCache):
    """A cache that gives back what a page of the given format would: torch's own rounding, not Octavo's."""

    def __init__(self, kv: KvFormat) -> None:
        super().__init__()
        self.kv = kv

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Round new keys and values, then store them."""
        return super().update(self._round(key_states), self._round(value_states), layer_idx, *args, **kwargs)

    def _round(self, states: torch.Tensor) -> torch.Tensor:
        if self.kv is KvFormat.FP8:
            return states.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float()
        return states.bfloat16().float()


class TransformersReference:
    """One loaded checkpoint."""

    def __init__(self, path: Path, kv: KvFormat) -> None:
        self.model = Qwen3MoeForCausalLM.from_pretrained(path, dtype=torch.float32)
        self.model.train(False)
        self.kv = kv

    @torch.inference_mode()
    def logits(self, tokens: list[int]) -> torch.Tensor:
        """Logits after each token: [n, V]."""
        logits: torch.Tensor = self.model(torch.tensor([tokens]), cache=RoundingCache(self.kv)).logits
        return logits[0]
