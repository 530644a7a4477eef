"""Whether an INT4 product rounds its activations to 8-bit integers."""

from __future__ import annotations

import functools

import torch

from octavo_kernels.cpu import library
from octavo_kernels.cpu.packing import Format
from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats.int4 import Int4Weight
from octavo_kernels.formats.linear import Activations, QuantisedWeight


@functools.cache
def fastest() -> Activations:
    """For INT4 on this CPU: integers where there are instructions for them. On AVX2 they are 1.8 times as fast for one
    token and twice for many, on AVX-512 VNNI 1.1 and 3 times; elsewhere float32 is faster, and exact."""
    return Activations.EXACT if library.load().variant.name == "portable" else Activations.QUANTISED


def uses_integers(name: Format, activations: Activations | None) -> bool:
    """Whether C gets 8-bit integers for a weight of this format; None means what is fastest."""
    if name not in (Format.INT4, Format.INT4_ZEROS):
        return False
    return (activations or fastest()) is Activations.QUANTISED


def check_activations(weight: torch.Tensor | QuantisedWeight, activations: Activations | None) -> None:
    """Raise KernelInputError for rounded activations with anything but INT4."""
    if activations is Activations.QUANTISED and not isinstance(weight, Int4Weight):
        raise KernelInputError(f"{type(weight).__name__} is weight-only on a CPU; only INT4 takes rounded activations")
