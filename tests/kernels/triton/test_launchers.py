"""What every launcher has in common."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import cast

import pytest
import torch

from octavo_kernels.implementations.triton import IMPLEMENTATIONS
from octavo_kernels.operations import ExpertKernel, LinearKernel, Operation
from octavo_kernels.registry import Implementation

LAUNCHING = [entry for entry in IMPLEMENTATIONS if entry.operation is not Operation.ROTARY_ANGLES]


@pytest.mark.parametrize("entry", LAUNCHING, ids=lambda entry: f"{entry.operation}/{entry.name}")
def test_it_launches_on_the_device_of_its_tensors(entry: Implementation, monkeypatch: pytest.MonkeyPatch) -> None:
    made_current: list[object] = []

    def device_of(tensor: torch.Tensor) -> nullcontext[None]:
        made_current.append(tensor)
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    loaded = entry.load()
    launcher = loaded.apply if isinstance(loaded, ExpertKernel | LinearKernel) else loaded
    tensor = torch.ones(1)
    with pytest.raises(TypeError, match="argument"):
        cast(Callable[..., object], launcher)(no_such_argument=tensor)
    assert made_current == [tensor]
