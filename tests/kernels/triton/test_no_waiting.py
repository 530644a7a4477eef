"""Launchers never ask the device anything: from the upload of a step's tables to its verdict the host only launches.

On a GPU tests/gpu/test_step_on_device.py says the same with torch's own means.
"""

from __future__ import annotations

import pytest
import torch

from tests.kernels.triton.decode_step import STEP, decode_step
from tests.kernels.triton.no_waiting import NoWaiting, WaitedForTheDevice


def test_the_detector_knows_a_question_to_the_device(device: torch.device) -> None:
    numbers = torch.ones(4, device=device)
    for question in (lambda: numbers.sum().item(), lambda: numbers[numbers > 0], lambda: bool(numbers[0] > 0)):
        with NoWaiting(), pytest.raises(WaitedForTheDevice):
            question()


def test_no_launcher_asks_the_device_anything() -> None:
    step = decode_step((1, 17))
    with NoWaiting():
        out, verdict = step.run()
    assert verdict.tolist() == [STEP] * step.pool.rows
    assert bool(out.isfinite().all())
