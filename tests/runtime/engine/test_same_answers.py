"""A request gets the same greedy tokens whatever else happens to it: exactly, with BF16 keys and values.

Both the specification and the CPU kernels are batch-invariant: tiles and the order of sums depend on a row's own
context and on nothing else in the batch. So the margin rule of near ties is not needed here.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch

from octavo_kernels.catalogue import Operations, operations_for
from octavo_kernels.device import Device
from octavo_kernels.implementations import reference
from octavo_kernels.registry import Formats, Registry
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import KvFormat, WeightFormat
from octavo_runtime.engine.engine import Engine
from octavo_runtime.engine.messages import EngineStats, Sampling, Submit
from octavo_runtime.engine.settings import EngineSettings
from octavo_runtime.engine.startup import build_engine
from octavo_runtime.kv.cache import KvCache
from octavo_runtime.loading.facts import read_facts
from octavo_runtime.loading.load import load_model
from octavo_runtime.models.base import Model
from tests.runtime.qwen3_moe_files import Shape, write

CPU = torch.device("cpu")
PAGE_SIZE = 16
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0)
ANSWER = 20
SHAPE = Shape()
STEPS_LIMIT = 2000


def prompts() -> list[list[int]]:
    """Of 3 to 60 tokens; the last two begin with the same 40."""
    rng = random.Random(7)
    lengths = [3, 17, 33, 60]
    drawn = [[rng.randrange(SHAPE.vocab) for _ in range(length)] for length in (*lengths, 40)]
    beginning = drawn.pop()
    return [*drawn, [*beginning, 1, 2, 3], [*beginning, 9]]


@dataclass
class Loaded:
    """A small Qwen3-MoE of random weights, and the kernels that it runs on."""

    path: Path
    model: Model
    operations: Operations

    def engine(self, *, seqs: int = 8, tokens_per_step: int = 256, pages: int = 60) -> Engine:
        """An engine with an empty cache of `pages` pages."""
        facts = self.model.facts
        layout = ParallelLayout.of(facts, 1)
        kv = KvCache.allocate(facts, layout, KvFormat.BF16, pages + 1, PAGE_SIZE, CPU)
        settings = EngineSettings(
            self.path, facts, max_num_seqs=seqs, tokens_per_step=tokens_per_step, page_size=PAGE_SIZE
        )
        return build_engine(settings, self.model, kv, self.operations, facts.max_position_embeddings, CPU)

    @cache  # noqa: B019 - as long as the module's tests
    def alone(self, index: int) -> list[int]:
        """What prompt `index` gets when nobody else is there."""
        return run(self.engine(), [prompts()[index]])[0][0, 0]

    def everyone_alone(self) -> dict[tuple[int, int], list[int]]:
        return {(index, 0): self.alone(index) for index in range(len(prompts()))}

    def __hash__(self) -> int:
        return id(self)


@pytest.fixture(scope="module", params=["reference", "cpu"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    path = write(tmp_path_factory.mktemp("moe"), SHAPE.config(), SHAPE.tensors(seed=4))
    formats = Formats(WeightFormat.BF16, KvFormat.BF16)
    if request.param == "reference":
        registry = Registry(reference.IMPLEMENTATIONS)
        operations = operations_for(Device.cpu(), formats, registry, allow_reference=True)
    else:
        operations = operations_for(Device.cpu(), formats)
    facts = read_facts(path)
    model = load_model(path, facts, ParallelLayout.of(facts, 1), WeightFormat.BF16, CPU, operations=operations)
    return Loaded(path, model, operations)


def run(engine: Engine, requests: list[list[int]], n: int = 1) -> tuple[dict[tuple[int, int], list[int]], EngineStats]:
    """Answers by (request, index), and what the engine counted."""
    for index, prompt in enumerate(requests):
        engine.submit(Submit(str(index), prompt, ANSWER, GREEDY, [], n))
    answers: dict[tuple[int, int], list[int]] = {}
    for _ in range(STEPS_LIMIT):
        if engine.idle:
            break
        result = engine.step()
        assert not result.violations
        assert not result.failures
        for token in result.tokens:
            answers.setdefault((int(token.request), token.index), []).append(token.token)
    return answers, engine.stats()


def test_alone_the_answers_differ(loaded: Loaded) -> None:
    """Else the other tests would compare nothing."""
    answers = loaded.everyone_alone().values()
    assert all(len(answer) == ANSWER for answer in answers)
    assert len({tuple(answer) for answer in answers}) == len(prompts())


def test_batched(loaded: Loaded) -> None:
    answers, _ = run(loaded.engine(), prompts())
    assert answers == loaded.everyone_alone()


@pytest.mark.parametrize("tokens_per_step", [8, 23])
def test_chunked(loaded: Loaded, tokens_per_step: int) -> None:
    answers, stats = run(loaded.engine(tokens_per_step=tokens_per_step), prompts())
    assert stats.steps > ANSWER + 5
    assert answers == loaded.everyone_alone()


def test_preempted_and_resumed(loaded: Loaded) -> None:
    answers, stats = run(loaded.engine(pages=11), prompts())
    assert stats.preemptions > 0
    assert answers == loaded.everyone_alone()


def test_with_prefix_hits(loaded: Loaded) -> None:
    engine = loaded.engine()
    run(engine, prompts())
    answers, stats = run(engine, prompts())
    assert stats.prefix_hit_tokens >= sum((len(prompt) - 1) // PAGE_SIZE * PAGE_SIZE for prompt in prompts())
    assert answers == loaded.everyone_alone()


def test_forked(loaded: Loaded) -> None:
    answers, stats = run(loaded.engine(), prompts(), n=2)
    assert stats.forks > 0
    assert stats.pages_copied > 0
    assert answers == {(index, fork): loaded.alone(index) for index in range(len(prompts())) for fork in range(2)}
