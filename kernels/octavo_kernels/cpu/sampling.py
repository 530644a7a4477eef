"""Sampling in C, without sorting the vocabulary.

The same tokens as `reference.sampling` for the same seeds, but for two roundings: top-p adds up probabilities in
float64 where the reference does in float32, so a token whose predecessors sum to top-p within V * 2**-24 may be cut
there and not here, or the other way round; and two tokens whose noisy logits agree to the last bit of a float32 may
change places.
"""

from __future__ import annotations

import torch

from octavo_kernels.cpu import library
from octavo_kernels.cpu.indices import require_within
from octavo_kernels.errors import KernelInputError, require_contiguous, require_dtype, require_shape
from octavo_kernels.formats.sampling import Logprobs, SamplingParameters
from octavo_kernels.reference.sampling import adjust


def sample(logits: torch.Tensor, parameters: SamplingParameters) -> torch.Tensor:
    """See `reference.sampling.sample`; all tensors contiguous."""
    rows, vocabulary = _check(logits)
    for name, dtype in _DTYPES.items():
        values = getattr(parameters, name)
        if values is None:
            continue
        require_dtype(name, values, dtype)
        require_shape(name, values, rows)
        require_contiguous(**{name: values})
    if parameters.adjustments is not None:
        logits = adjust(logits, parameters.adjustments)
    tokens = torch.zeros(rows, dtype=torch.int64)
    if rows:
        library.load().call(
            "sample",
            *(logits, parameters.temperature, parameters.top_k, parameters.top_p, parameters.min_p, parameters.seed),
            *(parameters.position, tokens, _scratch(rows, vocabulary), rows, vocabulary),
        )
    return tokens


def logprobs(logits: torch.Tensor, tokens: torch.Tensor, top: int) -> Logprobs:
    """See `reference.sampling.logprobs`; both tensors contiguous."""
    rows, vocabulary = _check(logits)
    require_dtype("tokens", tokens, torch.int64)
    require_shape("tokens", tokens, rows)
    require_contiguous(tokens=tokens)
    top = max(0, min(top, vocabulary))
    chosen, best = torch.empty(rows), torch.empty((rows, top))
    ids = torch.empty((rows, top), dtype=torch.int64)
    if rows:
        require_within("tokens", tokens, vocabulary)
        scratch = _scratch(rows, vocabulary)
        library.load().call("logprobs", logits, tokens, chosen, ids, best, scratch, rows, vocabulary, top)
    return Logprobs(chosen=chosen, top_ids=ids, top=best)


_DTYPES = {
    "temperature": torch.float32,
    "top_k": torch.int64,
    "top_p": torch.float32,
    "seed": torch.int64,
    "position": torch.int64,
    "min_p": torch.float32,
}


def _check(logits: torch.Tensor) -> tuple[int, int]:
    require_dtype("logits", logits, torch.float32)
    require_shape("logits", logits, None, None)
    require_contiguous(logits=logits)
    if not logits.shape[1] and logits.shape[0]:
        raise KernelInputError("logits has a vocabulary of 0 tokens, needed 1")
    return logits.shape[0], logits.shape[1]


def _scratch(rows: int, vocabulary: int) -> torch.Tensor:
    """What each thread needs: the scaled logits of its row, and entries of (logit, id)."""
    return torch.empty((torch.get_num_threads(), 3, vocabulary))
