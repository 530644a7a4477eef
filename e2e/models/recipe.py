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
    "model.safetensors": "76696b9be615c348dfe411f437aed26d8f553ac6a1cdbda98962d6af67d974f9",
    "tokenizer.json": "ff83e907e8e5cf874caab3acd4734525896cf214360a3e51b959dae0adf54612",
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
class Shares:
    """Shares of the sequences by kind; the rest is plain documentation."""

    drill: float
    """Facts stated again and again with nothing between."""
    recall: float
    """Facts and questions spread over prose."""
    echo: float
    """Snippets of prose said several times."""
    chat: float


BEFORE_DRILL = Shares(drill=0.0, recall=0.24, echo=0.08, chat=0.12)
DRILL = Shares(drill=0.60, recall=0.15, echo=0.02, chat=0.08)
USUAL = Shares(drill=0.04, recall=0.20, echo=0.02, chat=0.16)
LATE = Shares(drill=0.03, recall=0.18, echo=0.01, chat=0.26)
LAST = Shares(drill=0.02, recall=0.20, echo=0.00, chat=0.36)


@dataclass(frozen=True)
class Phase:
    """A stretch of the training, up to a share of all tokens, with its mix of sequences."""

    until_fraction: float
    lengths: tuple[tuple[int, float], ...]
    """(sequence length in tokens, share of the steps); shares sum to 1."""
    shares: Shares


@dataclass(frozen=True)
class Schedule:
    """How long and how fast; one step always sees ``tokens_per_step`` tokens, whatever the sequence length."""

    seed: int = 20_240_917
    tokens: int = 7_500_000
    tokens_per_step: int = 4096
    warmup_steps: int = 60
    decay_fraction: float = 0.4
    """The learning rate falls linearly to zero over this last share of the tokens."""
    matrix_learning_rate: float = 0.02
    """Muon, for attention and expert matrices."""
    other_learning_rate: float = 4e-3
    """AdamW, for embeddings, router and norms."""
    matrix_weight_decay: float = 0.05
    balance_weight: float = 0.01
    """Weight of the load-balancing loss over experts."""
    phases: tuple[Phase, ...] = field(
        default=(
            Phase(0.49, ((256, 1.0),), BEFORE_DRILL),
            Phase(0.54, ((256, 1.0),), DRILL),
            Phase(0.69, ((256, 0.5), (512, 0.3), (1024, 0.2)), USUAL),
            Phase(0.865, ((256, 0.4), (1024, 0.25), (2048, 0.35)), LATE),
            Phase(1.00, ((256, 0.4), (1024, 0.20), (2048, 0.40)), LAST),
        )
    )

    def phase_at(self, fraction: float) -> Phase:
        """The phase when ``fraction`` of the tokens have been seen."""
        return next((phase for phase in self.phases if fraction < phase.until_fraction), self.phases[-1])

    @property
    def most_workers(self) -> int:
        """Workers among which a step's tokens can be shared with a whole sequence of every length for each."""
        return self.tokens_per_step // max(length for phase in self.phases for length, _ in phase.lengths)

    def rate_at(self, step: int, fraction: float) -> float:
        """Learning-rate multiplier in [0, 1]: warm-up, plateau, linear decay to zero."""
        warm = min(1.0, (step + 1) / self.warmup_steps)
        return min(warm, max(0.0, (1.0 - fraction) / self.decay_fraction))


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
