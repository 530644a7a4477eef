"""The operations of a decoder step as a model sees them: one signature each, whatever implements it.

The signatures, shapes and dtypes are those of the functions in `reference/`, where they are documented.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

import torch

from octavo_kernels.formats.experts import CanonicalExperts
from octavo_kernels.formats.linear import QuantisedWeight
from octavo_kernels.formats.sampling import Logprobs, SamplingParameters


class Operation(StrEnum):
    """Everything that has more than one implementation, or will have."""

    PAGED_ATTENTION = "paged_attention"
    MLA_ATTENTION = "mla_attention"
    KV_WRITE = "kv_write"
    MLA_WRITE = "mla_write"
    CHECK_ROWS = "integrity.check_rows"
    CONCLUDE = "integrity.conclude"
    DIGEST_ROWS = "digest.digest_rows"
    DIGEST_PAGES = "digest.digest_pages"
    EXPERTS = "experts"
    ROUTER = "router"
    SIGMOID_ROUTER = "sigmoid_router"
    LINEAR = "linear"
    QUANTISED_LINEAR = "quantised_linear"
    RMS_NORM = "rms_norm"
    ROTARY_ANGLES = "rotary.angles"
    ROTATE = "rotary.rotate"
    SAMPLE = "sampling.sample"
    LOGPROBS = "sampling.logprobs"


class PagedAttention(Protocol):
    """`reference.paged_attention.paged_attention`."""

    def __call__(
        self,
        query: torch.Tensor,
        *,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
        k_scale: torch.Tensor,
        v_scale: torch.Tensor,
        block_table: torch.Tensor,
        query_start: torch.Tensor,
        context_lens: torch.Tensor,
        positions: torch.Tensor,
        softmax_scale: float,
    ) -> torch.Tensor: ...


class MlaAttention(Protocol):
    """`reference.mla_attention.mla_attention`: multi-head latent attention in absorbed form."""

    def __call__(
        self,
        query: torch.Tensor,
        *,
        pages: torch.Tensor,
        scale: torch.Tensor,
        latent_dim: int,
        block_table: torch.Tensor,
        query_start: torch.Tensor,
        context_lens: torch.Tensor,
        positions: torch.Tensor,
        softmax_scale: float,
    ) -> torch.Tensor: ...


class KvWrite(Protocol):
    """`reference.kv_write.kv_write`."""

    def __call__(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
        k_scale: torch.Tensor,
        v_scale: torch.Tensor,
        block_table: torch.Tensor,
        token_rows: torch.Tensor,
        positions: torch.Tensor,
        nonces: torch.Tensor,
        page_tags: torch.Tensor,
        page_writers: torch.Tensor,
        page_places: torch.Tensor,
        verdict: torch.Tensor,
        last_layer: bool,
    ) -> None: ...


class MlaWrite(Protocol):
    """`reference.kv_write.mla_write`."""

    def __call__(
        self,
        row: torch.Tensor,
        *,
        pages: torch.Tensor,
        scale: torch.Tensor,
        block_table: torch.Tensor,
        token_rows: torch.Tensor,
        positions: torch.Tensor,
        nonces: torch.Tensor,
        page_tags: torch.Tensor,
        page_writers: torch.Tensor,
        page_places: torch.Tensor,
        verdict: torch.Tensor,
        last_layer: bool,
    ) -> None: ...


class CheckRows(Protocol):
    """`reference.integrity.check_rows`."""

    def __call__(
        self,
        *,
        block_table: torch.Tensor,
        query_start: torch.Tensor,
        context_lens: torch.Tensor,
        nonces: torch.Tensor,
        bindings: torch.Tensor,
        page_tags: torch.Tensor,
        page_places: torch.Tensor,
        page_size: int,
        verdict: torch.Tensor,
    ) -> None: ...


class Conclude(Protocol):
    """`reference.integrity.conclude`."""

    def __call__(
        self,
        *,
        block_table: torch.Tensor,
        context_lens: torch.Tensor,
        page_places: torch.Tensor,
        page_size: int,
        step: int,
        verdict: torch.Tensor,
    ) -> None: ...


class DigestRows(Protocol):
    """`reference.digest.digest_rows`."""

    def __call__(
        self,
        *,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor | None,
        pages: torch.Tensor,
        slots: torch.Tensor,
        digests: torch.Tensor,
    ) -> None: ...


class DigestPages(Protocol):
    """`reference.digest.digest_pages`."""

    def __call__(
        self, *, k_pages: torch.Tensor, v_pages: torch.Tensor | None, pages: torch.Tensor, fill: torch.Tensor
    ) -> torch.Tensor: ...


class Linear(Protocol):
    """`reference.linear.linear`."""

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor: ...


class RmsNorm(Protocol):
    """`reference.rms_norm.rms_norm`."""

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor: ...


class RotaryAngles(Protocol):
    """`reference.rotary.angles`."""

    def __call__(
        self, positions: torch.Tensor, frequencies: torch.Tensor, amplitude: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


class Rotate(Protocol):
    """`reference.rotary.rotate`."""

    def __call__(
        self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, *, interleaved: bool = False
    ) -> torch.Tensor: ...


class Router(Protocol):
    """`reference.router.softmax_top_k`."""

    def __call__(self, logits: torch.Tensor, top_k: int, *, renormalise: bool) -> tuple[torch.Tensor, torch.Tensor]: ...


class SigmoidRouter(Protocol):
    """`reference.router.sigmoid_top_k`."""

    def __call__(
        self,
        logits: torch.Tensor,
        bias: torch.Tensor,
        top_k: int,
        *,
        groups: int,
        top_groups: int,
        renormalise: bool,
        scaling: float,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


class Sample(Protocol):
    """`reference.sampling.sample`."""

    def __call__(self, logits: torch.Tensor, parameters: SamplingParameters) -> torch.Tensor: ...


class TokenLogprobs(Protocol):
    """`reference.sampling.logprobs`."""

    def __call__(self, logits: torch.Tensor, tokens: torch.Tensor, top: int) -> Logprobs: ...


class PreparedWeights(Protocol):
    """Weights in an implementation's own layout: nobody else looks inside, but their size is known."""

    @property
    def nbytes(self) -> int:
        """Bytes in memory, scales and padding included."""
        ...


Prepared = TypeVar("Prepared", bound=PreparedWeights)


class LinearKernel(ABC, Generic[Prepared]):
    """A linear layer over a quantised weight, laid out by the implementation as `ExpertKernel` does with experts."""

    @abstractmethod
    def prepare(self, canonical: QuantisedWeight) -> Prepared:
        """Repack one weight of logical shape [N, K]; raises KernelInputError for a format or size that this kernel
        cannot take."""

    @abstractmethod
    def apply(self, x: torch.Tensor, prepared: Prepared) -> torch.Tensor:
        """`x @ weight.T`: x [T, K] float32, result [T, N] float32."""


class ExpertKernel(ABC, Generic[Prepared]):
    """Routed experts: the one operation whose weights each implementation lays out in its own way.

    `prepare` is called once per layer while loading; the caller drops the canonical copy right after, so that at most
    one layer exists twice. `apply` runs in every step.
    """

    @abstractmethod
    def prepare(self, canonical: CanonicalExperts) -> Prepared:
        """Repack one layer's experts; raises KernelInputError for a format or size that this kernel cannot take."""

    @abstractmethod
    def apply(self, x: torch.Tensor, prepared: Prepared, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """`sum_k weights[:, k] * expert[ids[:, k]](x)`.

        x [T, H] float32; ids [T, k] int64, every id in range; weights [T, k] float32; result [T, H] float32.
        """
