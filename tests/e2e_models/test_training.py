"""Training: the hand-written pieces are right, and an interrupted run goes on where it stopped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from e2e.models.optimizer import Muon, orthogonalise
from e2e.models.primitives import RmsNorm
from e2e.models.recipe import CHECKPOINT_DIR, USUAL, Phase, Schedule
from e2e.models.train import Run, train


def test_rms_norm_and_its_gradient_equal_the_librarys() -> None:
    generator = torch.Generator().manual_seed(0)
    ours, theirs = RmsNorm(16, 1e-6).double(), nn.RMSNorm(16, eps=1e-6).double()
    scale = torch.randn(16, generator=generator, dtype=torch.float64)
    pair = []
    for norm in (ours, theirs):
        norm.weight.data.copy_(scale)
        x = torch.linspace(-2, 3, 6 * 16, dtype=torch.float64).view(2, 3, 16).sin().requires_grad_()
        out = norm(x)
        out.square().sum().backward()
        pair.append((out.detach(), x.grad, norm.weight.grad))
    for mine, reference in zip(*pair, strict=True):
        torch.testing.assert_close(mine, reference)


@pytest.mark.parametrize("shape", [(5, 16, 32), (32, 16)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    values = torch.linalg.svdvals(orthogonalise(matrices))
    assert values.min() > 0.5
    assert values.max() < 1.5


def test_directions_shared_between_two_ranks_add_up_to_those_of_one() -> None:
    generator = torch.Generator().manual_seed(3)
    parameters = [nn.Parameter(torch.randn(3, 8, 8, generator=generator)) for _ in range(3)]
    for parameter in parameters:
        parameter.grad = torch.randn(3, 8, 8, generator=generator)
    pairs = [(parameter, 2) for parameter in parameters]
    whole = Muon(pairs).directions(0, 1)
    halves = [Muon(pairs).directions(rank, 2) for rank in (0, 1)]
    for one, first, second in zip(whole, *halves, strict=True):
        torch.testing.assert_close(one, first + second)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_from_its_saved_state(tmp_path: Path) -> None:
    sources, work = tmp_path / "sources", tmp_path / "work"
    sources.mkdir()
    work.mkdir()
    shutil.copyfile(CHECKPOINT_DIR / "tokenizer.json", work / "tokenizer.json")
    for number in range(60):
        (sources / f"page{number}.txt").write_text(f"Page {number} of many. " * 250, encoding="utf-8")
    schedule = Schedule(tokens=4 * 512, tokens_per_step=512, phases=(Phase(1.0, ((256, 1.0),), USUAL),))
    state_file = train(Run(sources, work, minutes=5, workers=1, schedule=schedule, report_every_steps=1))
    state = torch.load(state_file, weights_only=True)
    state["progress"] |= {"step": 2, "tokens": 2 * 512, "fraction": 0.5}
    torch.save(state, state_file)
    train(Run(sources, work, minutes=5, workers=1, schedule=schedule, report_every_steps=1))
    lines = [json.loads(line) for line in (work / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 3, 4]
