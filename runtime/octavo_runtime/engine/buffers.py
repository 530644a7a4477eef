"""StepBuffers: the memory that every step uses again, so that a captured graph finds its inputs where they were.

On CUDA each group of one dtype is filled in pinned memory and goes over in one copy; on a CPU both sides are the same
memory. The block table stays on the device and takes changes; the results come back in one copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from octavo_kernels.formats.sampling import SamplingParameters
from octavo_runtime.engine.batch import Batch
from octavo_runtime.engine.host_step import HostStep, TableChanges
from octavo_runtime.kv.records import upload

NO_TOKEN = -1
"""Result of a row that does not sample."""


class _Group:
    """Named vectors of one dtype, one after the other in one buffer."""

    def __init__(self, dtype: torch.dtype, sizes: Mapping[str, int], device: torch.device) -> None:
        total = sum(sizes.values())
        self._host = torch.zeros(total, dtype=dtype, pin_memory=device.type == "cuda")
        self._device = self._host if device.type == "cpu" else torch.zeros(total, dtype=dtype, device=device)
        self._host_parts: dict[str, npt.NDArray[np.generic]] = {}
        self._device_parts: dict[str, torch.Tensor] = {}
        start = 0
        for name, size in sizes.items():
            self._host_parts[name] = self._host[start : start + size].numpy()
            self._device_parts[name] = self._device[start : start + size]
            start += size

    def put(self, name: str, values: npt.NDArray[np.generic]) -> torch.Tensor:
        """Fill the beginning of a vector; returns that part of it on the device, valid after `upload`."""
        size = len(values)
        self._host_parts[name][:size] = values
        return self._device_parts[name][:size]

    def upload(self) -> None:
        """Bring what was put to the device."""
        if self._device is not self._host:
            self._device.copy_(self._host, non_blocking=True)


@dataclass(frozen=True)
class LoadedStep:
    """A step on the device; its tensors are valid until the next one is loaded."""

    batch: Batch
    sampling: SamplingParameters
    sample_rows: torch.Tensor
    """[S] int64."""
    digest_pages: torch.Tensor
    """[D] int64."""
    digest_fill: torch.Tensor
    """[D] int64."""


@dataclass(frozen=True)
class Results:
    """What one step leaves for the host, on the host."""

    verdicts: list[int]
    """[R]."""
    tokens: list[int]
    """[R], NO_TOKEN where the row does not sample."""
    moved: list[int]
    digests: list[int]


class StepBuffers:
    """Inputs, block table and results of steps of at most `rows` rows, `tokens` tokens and `digests` page digests."""

    def __init__(self, rows: int, tokens: int, digests: int, device: torch.device) -> None:
        self._rows = rows
        self._digests = digests
        by_row = dict.fromkeys(("bindings", "sample_tokens", "sample_rows", "top_k", "seed", "position"), rows)
        by_token = dict.fromkeys(("token_ids", "positions", "token_rows"), tokens)
        by_digest = dict.fromkeys(("digest_pages", "digest_fill"), digests)
        self._int64 = _Group(torch.int64, by_row | by_digest | by_token, device)
        lengths = {"query_start": rows + 1, "context_lens": rows, "nonces": rows}
        self._int32 = _Group(torch.int32, lengths, device)
        self._float32 = _Group(torch.float32, {"temperature": rows, "top_p": rows}, device)
        self._table = torch.zeros((rows, 1, 2), dtype=torch.int32, device=device)
        self._results = torch.zeros(3 * rows + digests, dtype=torch.int32, device=device)
        self._results_host = self._results
        if device.type != "cpu":
            self._results_host = torch.zeros(self._results.shape, dtype=torch.int32, pin_memory=device.type == "cuda")

    def load(self, step: HostStep, digest_pages: npt.NDArray[np.int64], digest_fill: int) -> LoadedStep:
        """Bring one step to the device and apply its changes to the block table. Verdicts and results start at zero."""
        self._change_table(step.table)
        rows, sampling = step.num_rows, step.sampling
        put = self._int64.put
        self._results.zero_()
        batch = Batch(
            step=step.step,
            token_ids=put("token_ids", step.token_ids),
            positions=put("positions", step.positions),
            token_rows=put("token_rows", step.token_rows),
            query_start=self._int32.put("query_start", step.query_start),
            context_lens=self._int32.put("context_lens", step.context_lens),
            block_table=self._table[:rows],
            nonces=self._int32.put("nonces", step.nonces),
            bindings=put("bindings", step.bindings),
            sample_tokens=put("sample_tokens", step.sample_tokens),
            verdict=self._results[:rows],
        )
        loaded = LoadedStep(
            batch,
            SamplingParameters(
                temperature=self._float32.put("temperature", sampling.temperature),
                top_k=put("top_k", sampling.top_k),
                top_p=self._float32.put("top_p", sampling.top_p),
                seed=put("seed", sampling.seed),
                position=put("position", sampling.position),
            ),
            put("sample_rows", step.sample_rows),
            put("digest_pages", digest_pages),
            put("digest_fill", np.full(len(digest_pages), digest_fill, np.int64)),
        )
        for group in (self._int64, self._int32, self._float32):
            group.upload()
        return loaded

    def _change_table(self, changes: TableChanges) -> None:
        device = self._table.device
        if changes.width != self._table.shape[1]:
            table = torch.zeros((self._rows, changes.width, 2), dtype=torch.int32, device=device)
            kept = min(changes.width, self._table.shape[1])
            table[:, :kept] = self._table[:, :kept]
            self._table = table
        if len(changes.cleared):
            self._table.index_fill_(0, upload(changes.cleared, device), 0)
        if len(changes.rows):
            where = (upload(changes.rows, device), upload(changes.columns, device))
            self._table.index_put_(where, upload(changes.pairs, device))

    def collect(
        self, loaded: LoadedStep, tokens: torch.Tensor, moved: torch.Tensor, digests: list[torch.Tensor]
    ) -> Results:
        """Bring the step's results to the host: the only copy back and the only wait of a step.

        tokens [S] int64; moved [copies] int32, 1 where a page was not copied right; digests [D] of one-element int32.
        """
        rows, limit = loaded.batch.num_rows, self._rows
        by_row = self._results[limit : 2 * limit]
        by_row.fill_(NO_TOKEN)
        by_row.index_copy_(0, loaded.sample_rows, tokens.to(torch.int32))
        self._results[2 * limit : 2 * limit + len(moved)] = moved
        for place, digest in enumerate(digests):
            self._results[3 * limit + place : 3 * limit + place + 1] = digest
        if self._results_host is not self._results:
            self._results_host.copy_(self._results, non_blocking=True)
        if self._results.is_cuda:
            torch.cuda.current_stream(self._results.device).synchronize()
        words = self._results_host.tolist()
        return Results(
            verdicts=words[:rows],
            tokens=words[limit : limit + rows],
            moved=words[2 * limit : 2 * limit + len(moved)],
            digests=words[3 * limit : 3 * limit + len(digests)],
        )
