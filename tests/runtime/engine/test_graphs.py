"""Which steps are recorded and replayed. The recorder here runs again what it was given, with the arguments that it was
given then: where a step's memory moved, its answers would be those of an old step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch

from octavo_runtime.engine.batch_builder import BatchBuilder
from octavo_runtime.engine.buffers import StepBuffers
from octavo_runtime.engine.digests import PageDigests
from octavo_runtime.engine.engine import Engine
from octavo_runtime.engine.executor import LocalExecutor
from octavo_runtime.engine.graphs import DecodeGraphs, Run, buckets_up_to
from octavo_runtime.engine.integrity import IntegrityMode
from tests.runtime.engine.provenance import CPU, OPERATIONS, expected_answer
from tests.runtime.engine.rig import Rig, rig_of

SEQS, PAGE_SIZE, TOKENS = 4, 4, 16
PROMPTS = {name: [11 + place, 3, 4, 5] for place, name in enumerate("abc")}


@dataclass
class Recording:
    run: Run

    def replay(self) -> torch.Tensor:
        return self.run()


@dataclass
class Recorder:
    refuses: bool = False
    recordings: list[Recording] = field(default_factory=list)

    def capture(self, run: Run) -> Recording:
        if self.refuses:
            raise RuntimeError("planted")
        self.recordings.append(Recording(run))
        return self.recordings[-1]


def rig_with(graphs: DecodeGraphs, pad_decode_to: Sequence[int]) -> Rig:
    rig = rig_of(seqs=SEQS, page_size=PAGE_SIZE, tokens_per_step=TOKENS, pad_decode_to=pad_decode_to)
    builder = BatchBuilder(SEQS, pad_decode_to)
    buffers = StepBuffers(builder.max_rows, TOKENS, 1, CPU)
    executor = LocalExecutor(rig.model, rig.cache, OPERATIONS, buffers, checks=True, graphs=graphs)
    digests = PageDigests(1, 1, PAGE_SIZE)
    engine = Engine(rig.scheduler, builder, executor, IntegrityMode.ENFORCE, digests, clock=rig.clock)
    return replace(rig, engine=engine)


def run(rig: Rig, tokens: int = 40) -> None:
    for name, prompt in PROMPTS.items():
        rig.submit(name, prompt, tokens)
    rig.run()


def test_replayed_steps_answer_as_steps_do() -> None:
    graphs = DecodeGraphs((4,), Recorder())
    rig = rig_with(graphs, (4,))
    run(rig)
    assert rig.tokens == {name: expected_answer(prompt, 40) for name, prompt in PROMPTS.items()}
    assert not rig.violations
    assert graphs.replayed > 20


def test_a_step_is_recorded_when_its_shape_comes_again_and_anew_when_the_table_has_widened() -> None:
    graphs = DecodeGraphs((4,), Recorder())
    rig = rig_with(graphs, (4,))
    rig.submit("a", [9, 8], 38)
    widths, steps, prompts = set(), 0, 1
    while not rig.engine.idle:
        rig.step()
        steps += 1
        widths.add(rig.engine._builder._width)
    assert widths == {1, 2, 4, 8, 16}
    # Of each width the first step runs by itself; so does the prompt. Width 1 has one step beside the prompt, or two.
    assert graphs.captured == len(widths)
    assert graphs.replayed == steps - prompts - len(widths)


def test_prompts_and_other_batch_sizes_are_never_replayed() -> None:
    graphs = DecodeGraphs((1, 2), Recorder())
    rig = rig_with(graphs, ())
    run(rig)  # three rows
    assert graphs.captured == graphs.replayed == 0
    rig.submit("long", list(range(1, 60)), 1)  # one row, and three steps of 16 tokens each
    rig.run()
    assert graphs.captured == 0


def test_what_cannot_be_recorded_runs_without_graphs(caplog: pytest.LogCaptureFixture) -> None:
    graphs = DecodeGraphs((4,), Recorder(refuses=True))
    rig = rig_with(graphs, (4,))
    run(rig)
    assert rig.tokens == {name: expected_answer(prompt, 40) for name, prompt in PROMPTS.items()}
    assert [record.message for record in caplog.records] == [
        "decode steps cannot be recorded and run without graphs from now on"
    ]


def test_a_replay_that_does_nothing_is_a_violation_and_gives_no_token() -> None:
    class Silent(Recording):
        def replay(self) -> torch.Tensor:
            return torch.full((SEQS,), 5)

    class Forgetful(Recorder):
        def capture(self, run: Run) -> Recording:
            return Silent(run)

    rig = rig_with(DecodeGraphs((4,), Forgetful()), (4,))
    run(rig)
    assert {reason for violation in rig.violations for reason in violation.reasons} == {"stale_verdict", "fill"}
    assert set(rig.failed) == set(PROMPTS)
    assert all(tokens == expected_answer(PROMPTS[name], 40)[: len(tokens)] for name, tokens in rig.tokens.items())


@pytest.mark.parametrize(("rows", "sizes"), [(1, (1,)), (2, (1, 2)), (5, (1, 2, 4, 8)), (64, (1, 2, 4, 8, 16, 32, 64))])
def test_buckets_are_powers_of_two_that_hold_every_batch(rows: int, sizes: tuple[int, ...]) -> None:
    assert buckets_up_to(rows) == sizes
