"""Decode steps as captured graphs: the host launches one graph instead of some hundred kernels.

A graph is a recording of kernels and of the addresses that they read and write. It may be replayed when the step is of
the same shape and all of these addresses are still the same; the numbers behind them may be others. What cannot be
recorded stays outside: page records and copies, the conclusion (the step's number is an argument of its kernel),
digests, and the copy of the results.

Recording runs nothing, and kernels that were never launched cannot be recorded. So the first step of a shape runs as
any other, and the second one is recorded and replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import torch

from octavo_runtime.engine.buffers import LoadedStep
from octavo_runtime.engine.logs import logger
from octavo_runtime.kv.cache import KvCache

Run = Callable[[], torch.Tensor]
"""Launches the kernels of one step; the sampled tokens [S] int64 on the device."""

Addresses = tuple[tuple[int, tuple[int, ...]], ...]


class Graph(Protocol):
    """A recorded step."""

    def replay(self) -> torch.Tensor:
        """Run what was recorded; the tokens are valid until the next replay of any graph."""
        ...


class CaptureBackend(Protocol):
    """What can record."""

    def capture(self, run: Run) -> Graph:
        """Record what `run` launches, without running it; raises RuntimeError where that is not possible."""
        ...


def buckets_up_to(rows: int) -> tuple[int, ...]:
    """Powers of two, the last one at least `rows`: a step is padded to less than twice its rows."""
    return tuple(1 << power for power in range((rows - 1).bit_length() + 1))


class DecodeGraphs:
    """At most one graph for each batch size in `sizes`."""

    def __init__(self, sizes: Sequence[int], backend: CaptureBackend) -> None:
        self._sizes = frozenset(sizes)
        self._backend = backend
        self._seen: dict[int, Addresses] = {}
        self._graphs: dict[int, Graph] = {}
        self.captured = 0
        self.replayed = 0

    def run(self, loaded: LoadedStep, cache: KvCache, compute: Callable[[LoadedStep], torch.Tensor]) -> torch.Tensor:
        """The tokens of a step: of `compute` itself, or of a replay of what it launched for an earlier step."""

        def run() -> torch.Tensor:
            return compute(loaded)

        rows = loaded.batch.num_rows
        if rows not in self._sizes or not _decodes(loaded):
            return run()
        now = _addresses(loaded, cache)
        if self._seen.get(rows) != now:
            self._seen[rows] = now
            self._graphs.pop(rows, None)
            return run()
        graph = self._graphs.get(rows)
        if graph is None:
            try:
                graph = self._backend.capture(run)
            except RuntimeError:
                logger("graphs").exception("decode steps cannot be recorded and run without graphs from now on")
                self._sizes = frozenset()
                return run()
            self._graphs[rows] = graph
            self.captured += 1
        self.replayed += 1
        return graph.replay()


def _decodes(loaded: LoadedStep) -> bool:
    """Whether each row, padding included, has exactly one new token and samples another."""
    batch = loaded.batch
    return batch.num_tokens == batch.num_rows == len(batch.sample_tokens)


def _addresses(loaded: LoadedStep, cache: KvCache) -> Addresses:
    """Where a step's kernels read and write, besides weights, which never move."""
    parts = [getattr(owner, part.name) for owner in (loaded.batch, loaded.sampling) for part in fields(owner)]
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    records = cache.records
    tensors += [cache.storage, records.tag, records.place, records.writer]
    tensors += [] if cache.scales is None else [cache.scales]
    return tuple((tensor.data_ptr(), tuple(tensor.shape)) for tensor in tensors)


@dataclass(frozen=True)
class _CudaGraph:
    graph: torch.cuda.CUDAGraph
    tokens: torch.Tensor

    def replay(self) -> torch.Tensor:
        self.graph.replay()
        return self.tokens


class CudaCapture:
    """Records CUDA graphs. They share their memory: one runs at a time, and its tokens are fetched in its own step."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, run: Run) -> _CudaGraph:
        """See `CaptureBackend`."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            tokens = run()
        return _CudaGraph(graph, tokens)
