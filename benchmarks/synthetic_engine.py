"""An engine over a synthetic model, with requests that decode side by side for as many steps as one asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks.synthetic_model import CPU, QuickPrompts, Slice, Timers
from octavo_kernels.catalogue import Operations
from octavo_runtime.contract.facts import ModelFacts
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import KvFormat
from octavo_runtime.engine.batch import Batch
from octavo_runtime.engine.engine import Engine
from octavo_runtime.engine.integrity import IntegrityMode
from octavo_runtime.engine.messages import Sampling, Submit
from octavo_runtime.engine.settings import EngineSettings
from octavo_runtime.engine.startup import build_engine
from octavo_runtime.kv.cache import KvCache
from octavo_runtime.models.base import Model
from octavo_runtime.models.qwen3_moe import Qwen3Moe

PROMPT_STEPS_LIMIT = 1000
TOKENS_PER_STEP = 8192
"""Of prompts, which take no products here; few steps, since whoever has its prompt already decodes meanwhile."""

Instrument = Callable[[Operations], Operations]


@dataclass(frozen=True)
class TimedModel:
    """A model whose forward pass is watched; implements `models.base.Model`."""

    model: Model
    watched: Callable[[Batch, KvCache], torch.Tensor]

    @property
    def facts(self) -> ModelFacts:
        """Of the model."""
        return self.model.facts

    def forward(self, batch: Batch, cache: KvCache) -> torch.Tensor:
        """See `models.base.Model.forward`."""
        return self.watched(batch, cache)


def engine_over(
    shape: Slice,
    model: Qwen3Moe,
    *,
    kv: KvFormat,
    mode: IntegrityMode,
    num_pages: int,
    page_size: int,
    max_num_seqs: int,
    instrument: Instrument = lambda operations: operations,
    timers: Timers | None = None,
) -> Engine:
    """An engine with a cache of its own over a model that several engines may share.

    `timers` get the forward pass as "forward".
    """
    facts = model.facts
    operations = instrument(shape.operations(kv, page_size))
    settings = EngineSettings(
        model=Path("synthetic"),
        facts=facts,
        max_num_seqs=max_num_seqs,
        tokens_per_step=TOKENS_PER_STEP,
        page_size=page_size,
        integrity=mode,
    )
    cache = KvCache.allocate(facts, ParallelLayout.of(facts, 1), kv, num_pages, page_size, CPU)
    cache.commit()
    quick = QuickPrompts.of(replace(model, operations=operations))
    timed = quick if timers is None else TimedModel(quick, timers.around("forward", quick.forward))
    return build_engine(settings, timed, cache, operations, facts.max_position_embeddings, CPU)


def submit(
    engine: Engine, name: str, requests: int, prompt_tokens: int, answer_tokens: int, vocabulary: int, *, stagger: int
) -> None:
    """`requests` requests of different random prompts, sampled with a seed each: any engine gets the same ones.

    With `stagger` n their prompts are up to n - 1 tokens shorter, in turn: so they do not all fill a page in one step.
    """
    generator = torch.Generator().manual_seed(requests)
    for index in range(requests):
        prompt = torch.randint(0, vocabulary, (prompt_tokens - index % stagger,), generator=generator).tolist()
        # Sampled, because greedy answers of a random model run into the same few tokens and thus experts.
        sampling = Sampling(temperature=1.0, top_p=1.0, top_k=0, seed=index)
        engine.submit(Submit(f"{name}-{index}", prompt, answer_tokens, sampling, []))


def decode_only(engine: Engine, running: int) -> None:
    """Step until `running` requests decode: from here on each step is one token of each."""
    started: set[str] = set()
    for _ in range(PROMPT_STEPS_LIMIT):
        if len(started) >= running:
            return
        started.update(token.request for token in engine.step().tokens)
    raise RuntimeError(f"{len(started)} of {running} requests have a token after {PROMPT_STEPS_LIMIT} steps")


def end_all(engine: Engine, name: str, requests: int) -> None:
    """Cancel what is left of the requests of `submit`."""
    for index in range(requests):
        engine.cancel(f"{name}-{index}")
