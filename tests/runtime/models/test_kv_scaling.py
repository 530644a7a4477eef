"""A model over an FP8 cache with one scale per token and head: near BF16 keys and values, in every way of running."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo_kernels.catalogue import operations_for
from octavo_kernels.device import Device
from octavo_kernels.registry import Formats
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import KvFormat, KvScaling, WeightFormat
from octavo_runtime.engine.engine import Engine
from octavo_runtime.engine.messages import EngineStats, Sampling, Submit
from octavo_runtime.engine.settings import EngineSettings
from octavo_runtime.engine.startup import build_engine
from octavo_runtime.kv.cache import KvCache
from octavo_runtime.loading.facts import read_facts
from octavo_runtime.loading.load import load_model
from tests.runtime.models.stepping import CPU, Stepper
from tests.runtime.qwen3_moe_files import Shape, write

SHAPE = Shape(head_dim=32, experts=4, top_k=4)
TOKENS = torch.randint(SHAPE.vocab, (150,), generator=torch.Generator().manual_seed(3)).tolist()
PAGE_SIZE = 16
ANSWER = 12
STEPS_LIMIT = 500


LARGEST_DEVIATION = 0.08
"""Root mean square over all positions and tokens, of logits whose own is 1.0; measured 0.054 and 0.058."""

BEYOND_FP8 = 2.0**12
"""Values so much larger than the others do not fit FP8 with the scale 1 that a whole tensor has by default."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("moe"), SHAPE.config(), SHAPE.tensors(seed=4))


@pytest.fixture(scope="module")
def checkpoint_of_large_values(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same function: what the value projections gain, the output projections lose."""
    gains = {"v_proj": BEYOND_FP8, "o_proj": 1 / BEYOND_FP8}
    tensors = {
        name: tensor * next((gain for part, gain in gains.items() if part in name), 1.0)
        for name, tensor in SHAPE.tensors(seed=4).items()
    }
    return write(tmp_path_factory.mktemp("large"), SHAPE.config(), tensors)


def logits(checkpoint: Path, kv: KvFormat, scaling: KvScaling = KvScaling.PER_TENSOR) -> torch.Tensor:
    """Of every position, [150, V]: a prompt, then token by token."""
    stepper = Stepper.load(checkpoint, WeightFormat.BF16, kv, scaling=scaling)
    sequence = stepper.start()
    prefill = stepper.step({0: (sequence, TOKENS[:100])}, every=True)[0]
    return torch.cat((prefill, torch.stack([stepper.step({0: (sequence, [token])})[0] for token in TOKENS[100:]])))


def deviation(checkpoint: Path, scaling: KvScaling) -> float:
    """Of logits over FP8 keys and values from those over BF16 ones."""
    difference = logits(checkpoint, KvFormat.FP8, scaling) - logits(checkpoint, KvFormat.BF16)
    return float(difference.square().mean().sqrt())


@pytest.mark.parametrize("scaling", KvScaling)
def test_logits_are_near_those_of_bf16_keys_and_values(checkpoint: Path, scaling: KvScaling) -> None:
    assert 0.01 < deviation(checkpoint, scaling) < LARGEST_DEVIATION


def test_only_scales_per_token_and_head_follow_values_that_fp8_cannot_hold(checkpoint_of_large_values: Path) -> None:
    assert deviation(checkpoint_of_large_values, KvScaling.PER_TOKEN_HEAD) < LARGEST_DEVIATION
    assert deviation(checkpoint_of_large_values, KvScaling.PER_TENSOR) > 2 * LARGEST_DEVIATION


def engine_of(checkpoint: Path, pages: int = 60) -> Engine:
    facts = read_facts(checkpoint)
    layout = ParallelLayout.of(facts, 1)
    operations = operations_for(Device.cpu(), Formats(WeightFormat.BF16, KvFormat.FP8))
    model = load_model(checkpoint, facts, layout, WeightFormat.BF16, CPU, operations=operations)
    scaling = KvScaling.PER_TOKEN_HEAD
    kv = KvCache.allocate(facts, layout, KvFormat.FP8, pages + 1, PAGE_SIZE, CPU, scaling)
    settings = EngineSettings(checkpoint, facts, max_num_seqs=6, page_size=PAGE_SIZE, kv_scaling=scaling)
    return build_engine(settings, model, kv, operations, facts.max_position_embeddings, CPU)


def run(engine: Engine, prompts: list[list[int]], n: int = 1) -> tuple[dict[tuple[str, int], list[int]], EngineStats]:
    greedy = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0)
    for index, prompt in enumerate(prompts):
        engine.submit(Submit(str(index), prompt, ANSWER, greedy, [], n))
    answers: dict[tuple[str, int], list[int]] = {}
    for _ in range(STEPS_LIMIT):
        if engine.idle:
            break
        result = engine.step()
        assert not result.violations
        assert not result.failures
        for token in result.tokens:
            answers.setdefault((token.request, token.index), []).append(token.token)
    engine.audit()
    return answers, engine.stats()


def test_scales_follow_their_pages_into_forks_prefix_hits_and_recomputed_requests(checkpoint: Path) -> None:
    prompts = [TOKENS[:41], TOKENS[:60], TOKENS[70:73]]
    alone = {
        (str(index), fork): run(engine_of(checkpoint), [prompt])[0]["0", 0]
        for index, prompt in enumerate(prompts)
        for fork in range(2)
    }
    engine = engine_of(checkpoint, pages=11)
    for _ in range(2):
        answers, stats = run(engine, prompts, n=2)
        assert answers == alone
    assert min(stats.pages_copied, stats.prefix_hit_tokens, stats.preemptions, stats.digests_checked) > 0
    assert len({tuple(answer) for answer in alone.values()}) == len(prompts)
