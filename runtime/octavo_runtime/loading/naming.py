"""What a tensor's name says: which layer it belongs to, which routed expert, and what part of its module it is.

Names as published: `model.layers.3.mlp.experts.17.gate_proj.weight` (Qwen, DeepSeek, GLM), with a prefix
`language_model.` (Kimi), or `model.layers.3.block_sparse_moe.experts.5.w1.weight` (Mixtral); `mlp.experts.down_proj`
without a number holds all experts of a layer. A large checkpoint has 200,000 names, so this is plain string cutting.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from octavo_runtime.loading.headers import TensorHeader

LONGEST_INDEX = 6
"""Digits of a layer or expert number; what is longer is no number of either."""

_LAYERS = "layers."
_EXPERTS = ("mlp.experts.", "block_sparse_moe.experts.")
_EMBEDDINGS = ("embed_tokens.weight", "lm_head.weight", "shared_head.head.weight")
_OUTPUT_HEAD = "lm_head.weight"

_AUXILIARY = re.compile(
    r"(?:^|_)(?:scales?|scale_inv|scale_2|zero_points?|zeros|qzeros|g_idx|weight_shape|inv_freq|global_scale)$"
)
"""Leaves that describe another tensor and hold no parameters: scales, zero points, permutations, shapes."""


class Placed(NamedTuple):
    """A tensor and where it belongs."""

    tensor: TensorHeader
    layer: int | None
    """Decoder layer; multi-token prediction layers have the numbers after the last one."""
    routed: bool
    """Whether it belongs to routed experts."""
    expert: int | None
    """Which routed expert; None when the tensor holds all of a layer's."""

    @property
    def leaf(self) -> str:
        """Last part of the name, e.g. `weight_packed`."""
        return self.tensor.name.rpartition(".")[2]

    @property
    def is_embedding(self) -> bool:
        """Token embedding or output head."""
        return self.tensor.name.endswith(_EMBEDDINGS)

    @property
    def is_output_head(self) -> bool:
        """The output head of the model itself."""
        return self.tensor.name.endswith(_OUTPUT_HEAD)


def place(tensors: Iterable[TensorHeader]) -> Iterator[Placed]:
    """Each tensor with its place, in the order given."""
    for tensor in tensors:
        before, found, rest = tensor.name.partition(_LAYERS)
        number, _, inner = rest.partition(".")
        if not found or not _is_index(number) or (before and not before.endswith(".")):
            yield Placed(tensor, None, routed=False, expert=None)
            continue
        routed = inner.startswith(_EXPERTS)
        expert = inner.split(".", 3)[2] if routed else ""
        yield Placed(tensor, int(number), routed, int(expert) if _is_index(expert) else None)


def _is_index(text: str) -> bool:
    return len(text) <= LONGEST_INDEX and text.isascii() and text.isdecimal()


@lru_cache(maxsize=4096)
def is_auxiliary(leaf: str) -> bool:
    """Whether tensors of this leaf belong to another one's storage format and count no parameters."""
    return _AUXILIARY.search(leaf) is not None
