"""The tiny MoE in numbers: what is trained, on what, for how long, and what the committed result hashes to.

Everything that another part of the recipe could want to change lives here; the other modules only act on it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

CHECKPOINT_DIR = Path(__file__).parent / "tiny-moe"
WEIGHTS_FILE = "model.safetensors"
VALIDATION_FILE = "validation.json"
"""Held-out prose inside the checkpoint directory, so that measuring accuracy needs no download."""

PINNED_SHA256 = {
    "model.safetensors": "",
    "tokenizer.json": "",
}
"""Of the committed checkpoint. A new training run gives other bits (threads add in another order): pin them anew."""

DEBIAN_PACKAGE = "python3.11-doc"
HELD_OUT_FILES = 25

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
"""In id order: 0, 1, 2."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of the Qwen3-MoE architecture; field names are those of Hugging Face's ``config.json``."""

    vocab_size: int = 2048
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 32
    num_experts: int = 8
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 128
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 4096
    rope_theta: float = 1_000_000.0
    """Seven of the sixteen rotary pairs turn less than one radian in 2,048 tokens: room to match by content."""


@dataclass(frozen=True)
class Phase:
    """A stretch of the training, up to a share of all tokens, with its mix of sequence lengths."""

    until_fraction: float
    lengths: tuple[tuple[int, float], ...]
    """(sequence length in tokens, share of the steps); shares sum to 1."""


@dataclass(frozen=True)
class Schedule:
    """How long and how fast; one step always sees ``tokens_per_step`` tokens, whatever the sequence length."""

    seed: int = 20_240_917
    tokens: int = 8_000_000
    tokens_per_step: int = 4096
    warmup_steps: int = 60
    decay_fraction: float = 0.5
    """The learning rate falls linearly to zero over this last share of the tokens."""
    matrix_learning_rate: float = 0.02
    """Muon, for attention and expert matrices."""
    other_learning_rate: float = 4e-3
    """AdamW, for embeddings, router and norms."""
    matrix_weight_decay: float = 0.05
    balance_weight: float = 0.01
    """Weight of the load-balancing loss over experts."""
    echo_share: float = 0.08
    recall_share: float = 0.24
    chat_share: float = 0.12
    """Shares of the sequences; the rest is plain documentation."""
    phases: tuple[Phase, ...] = field(
        default=(
            Phase(0.45, ((256, 1.0),)),
            Phase(0.75, ((256, 0.5), (512, 0.3), (1024, 0.2))),
            Phase(1.00, ((256, 0.4), (1024, 0.25), (2048, 0.35))),
        )
    )

    def lengths_at(self, fraction: float) -> tuple[tuple[int, float], ...]:
        """The mix of sequence lengths when ``fraction`` of the tokens have been seen."""
        for phase in self.phases:
            if fraction < phase.until_fraction:
                return phase.lengths
        return self.phases[-1].lengths

    def rate_at(self, step: int, fraction: float) -> float:
        """Learning-rate multiplier in [0, 1]: warm-up, plateau, linear decay to zero."""
        warm = min(1.0, (step + 1) / self.warmup_steps)
        return min(warm, max(0.0, (1.0 - fraction) / self.decay_fraction))


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
