"""A slice of Qwen3-30B-A3B with random weights, straight in memory and in the real kernels' layout; no checkpoint.

A slice of `layers` has that share of the vocabulary too, so that the output head weighs as much against a layer as it
does in the whole model. Costs that come once per step meet fewer layers than in life: the slice never flatters them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

from octavo_kernels.catalogue import Operations, operations_for
from octavo_kernels.device import Device
from octavo_kernels.formats.experts import Bf16Experts, CanonicalExperts, Int4Experts
from octavo_kernels.formats.int4 import Int4Weight
from octavo_kernels.operations import ExpertKernel, PreparedWeights
from octavo_kernels.reference.rotary import inverse_frequencies
from octavo_kernels.registry import Formats, Shapes
from octavo_runtime.contract.facts import (
    AttentionFacts,
    AttentionKind,
    CheckpointFormat,
    ExpertFacts,
    ModelFacts,
    ParameterFacts,
)
from octavo_runtime.contract.precision import KvFormat, WeightFormat
from octavo_runtime.engine.batch import Batch
from octavo_runtime.kv.cache import KvCache
from octavo_runtime.models.layers import Attention, HeadNorm, RoutedExperts
from octavo_runtime.models.qwen3_moe import DEFAULT_EPSILON, DEFAULT_THETA, Layer, Qwen3Moe, Settings

CPU = torch.device("cpu")
GROUP_SIZE = 128
"""Inputs of one INT4 scale."""
WHOLE_LAYERS, WHOLE_VOCABULARY = 48, 151936
CACHES_OF_EXPERTS = 16
"""Distinct experts are this many times the last-level cache where there are layers enough: none is in the cache when it
is met again."""
CACHE_FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")
ASSUMED_CACHE_BYTES = 64 << 20
"""Last-level cache where the system does not say."""
NOISE_VALUES = 1 << 20

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Slice:
    """Shape of the model: everything but the depth is Qwen3-30B-A3B's."""

    layers: int
    weights: WeightFormat = WeightFormat.INT4
    hidden: int = 2048
    heads: int = 32
    kv_heads: int = 4
    head_dim: int = 128
    experts: int = 128
    top_k: int = 8
    intermediate: int = 768

    @property
    def vocabulary(self) -> int:
        """The slice's share of the whole vocabulary, in whole tiles of 64."""
        return -(-WHOLE_VOCABULARY * self.layers // (WHOLE_LAYERS * 64)) * 64

    def facts(self, max_position_embeddings: int) -> ModelFacts:
        """As the engine wants them."""
        return ModelFacts(
            architecture="Qwen3MoeForCausalLM",
            revision="random",
            layers=self.layers,
            hidden_size=self.hidden,
            vocab_size=self.vocabulary,
            max_position_embeddings=max_position_embeddings,
            attention=AttentionFacts(
                kind=AttentionKind.GQA, heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim
            ),
            experts=ExpertFacts(
                count=self.experts,
                per_token=self.top_k,
                intermediate_size=self.intermediate,
                layers=self.layers,
            ),
            format=CheckpointFormat.BF16,
            parameters=ParameterFacts(routed_experts=0, embeddings=0, other=0),
            checkpoint_bytes=0,
        )

    def operations(self, kv: KvFormat, page_size: int) -> Operations:
        """The kernels that serve this model on this CPU; raises ReferenceNotAllowed where there are none."""
        shapes = Shapes(
            head_dim=self.head_dim,
            group=self.heads // self.kv_heads,
            page_size=page_size,
            hidden=self.hidden,
            intermediate=self.intermediate,
            group_size=GROUP_SIZE,
        )
        return operations_for(Device.of(CPU), Formats(self.weights, kv), shapes=shapes)

    def describe(self) -> str:
        """For a table's head."""
        return (
            f"{self.layers} of {WHOLE_LAYERS} layers of Qwen3-30B-A3B, random weights: hidden {self.hidden}, "
            f"{self.heads} heads, {self.kv_heads} KV heads of {self.head_dim}, {self.experts} experts top-{self.top_k} "
            f"of {self.intermediate} in {self.weights}, vocabulary {self.vocabulary}"
        )


def build_model(shape: Slice, operations: Operations, max_position_embeddings: int) -> Qwen3Moe:
    """Random weights, prepared by `operations`. Experts that are enough for the cache's size are made once and then
    taken in turn: a layer that comes again finds its weights out of the cache all the same."""
    generator = torch.Generator().manual_seed(0)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator).mul_(columns**-0.5).bfloat16()

    def norm(size: int) -> torch.Tensor:
        return (1 + torch.randn(size, generator=generator) / 10).bfloat16()

    facts, hidden, width = shape.facts(max_position_embeddings), shape.hidden, shape.heads * shape.head_dim
    kv_width = shape.kv_heads * shape.head_dim
    sets: list[PreparedWeights] = []
    layers: list[Layer] = []
    for index in range(shape.layers):
        if sum(made.nbytes for made in sets) < CACHES_OF_EXPERTS * last_level_cache_bytes():
            sets.append(operations.experts.prepare(_experts(shape, generator)))
        attention = Attention(
            query=matrix(width, hidden),
            key=matrix(kv_width, hidden),
            value=matrix(kv_width, hidden),
            output=matrix(hidden, width),
            head_norm=HeadNorm(norm(shape.head_dim), norm(shape.head_dim), DEFAULT_EPSILON),
            head_dim=shape.head_dim,
            layer=index,
        )
        experts = RoutedExperts(matrix(shape.experts, hidden), sets[index % len(sets)], shape.top_k, renormalise=True)
        layers.append(Layer(norm(hidden), attention, norm(hidden), experts))
    return Qwen3Moe(
        facts=facts,
        settings=Settings(DEFAULT_EPSILON, DEFAULT_THETA, renormalise=True, tied_embeddings=False),
        embedding=matrix(shape.vocabulary, hidden).mul_(hidden**0.5),
        layers=tuple(layers),
        final_norm=norm(hidden),
        output_head=matrix(shape.vocabulary, hidden),
        frequencies=inverse_frequencies(shape.head_dim, DEFAULT_THETA, CPU),
        operations=operations,
    )


def distinct_weight_bytes(model: Qwen3Moe) -> int:
    """Bytes of all weights, those that layers share counted once."""
    experts = {id(layer.experts.experts): layer.experts.experts.nbytes for layer in model.layers}
    others = model.weight_bytes - sum(layer.experts.experts.nbytes for layer in model.layers)
    return others + sum(experts.values())


def last_level_cache_bytes() -> int:
    """Of the first processor, from sysfs."""
    sizes = [path.read_text(encoding="ascii").strip() for path in CACHE_FOLDER.glob("index*/size")]
    in_bytes = [int(size.removesuffix("K").removesuffix("M")) << (20 if size.endswith("M") else 10) for size in sizes]
    return max(in_bytes, default=ASSUMED_CACHE_BYTES)


def _experts(shape: Slice, generator: torch.Generator) -> CanonicalExperts:
    gate_up, down = (2 * shape.intermediate, shape.hidden), (shape.hidden, shape.intermediate)
    if shape.weights is WeightFormat.INT4:
        return Int4Experts(
            _random_int4(shape.experts, *gate_up, generator), _random_int4(shape.experts, *down, generator)
        )
    return Bf16Experts(_random_bf16(shape.experts, *gate_up, generator), _random_bf16(shape.experts, *down, generator))


def _random_int4(experts: int, rows: int, columns: int, generator: torch.Generator) -> Int4Weight:
    packed = torch.randint(0, 256, (experts, rows, columns // 2), dtype=torch.uint8, generator=generator)
    # Nibbles -8..7 have a standard deviation of 4.6.
    step = columns**-0.5 / 4.6
    scales = (torch.rand(experts, rows, columns // GROUP_SIZE, generator=generator) * 2 * step).bfloat16()
    return Int4Weight(packed, scales, GROUP_SIZE)


def _random_bf16(experts: int, rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """Random sign and mantissa, one exponent: numbers of the size that keeps a product's, made at memory speed."""
    exponent = 126 - (columns.bit_length() - 1) // 2
    bits = torch.randint(-(2**15), 2**15, (experts, rows, columns), dtype=torch.int16, generator=generator)
    return bits.bitwise_and_(-(2**15) + 0x7F).bitwise_or_(exponent << 7).view(torch.bfloat16)


class _NoExperts(ExpertKernel[PreparedWeights]):
    """Adds nothing to a token."""

    def prepare(self, canonical: CanonicalExperts) -> PreparedWeights:
        raise NotImplementedError

    def apply(
        self, x: torch.Tensor, prepared: PreparedWeights, ids: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        return torch.zeros_like(x)


@dataclass(frozen=True)
class QuickPrompts:
    """The model, except that a prompt's keys and values are noise instead of an hour of products.

    They are stored by the real operation through the real pages, so that every later step reads, and the integrity
    check sees, what it would after a real prompt. Implements `models.base.Model`.
    """

    model: Qwen3Moe
    noise: torch.Tensor

    @classmethod
    def of(cls, model: Qwen3Moe) -> QuickPrompts:
        """With noise of its own."""
        return cls(model, torch.randn(NOISE_VALUES, generator=torch.Generator().manual_seed(1)))

    @property
    def facts(self) -> ModelFacts:
        """Of the model."""
        return self.model.facts

    def forward(self, batch: Batch, cache: KvCache) -> torch.Tensor:
        """See `models.base.Model.forward`."""
        if batch.num_tokens <= batch.num_rows:
            return self.model.forward(batch, cache)
        operations = replace(
            self.model.operations, linear=self._linear, paged_attention=self._attention, experts=_NoExperts()
        )
        return replace(self.model, operations=operations).forward(batch, cache)

    def _linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        shape = (x.shape[0], weight.shape[0])
        times = -(-shape[0] * shape[1] // NOISE_VALUES)
        return self.noise.repeat(times)[: shape[0] * shape[1]].view(shape)

    def _attention(self, query: torch.Tensor, **_rest: object) -> torch.Tensor:
        return query


@dataclass
class Timers:
    """Seconds spent in functions, by name, since the last `take`."""

    clock: Callable[[], float] = time.perf_counter
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def around(self, name: str, function: Callable[P, T]) -> Callable[P, T]:
        """`function`, timed."""

        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            start = self.clock()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] += self.clock() - start

        return timed

    def take(self) -> dict[str, float]:
        """Seconds by name since the last call."""
        taken, self.seconds = self.seconds, defaultdict(float)
        return taken
