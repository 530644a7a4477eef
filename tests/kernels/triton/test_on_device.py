"""What tests/gpu does to the tests of this folder: their tensors are made elsewhere, with the same numbers."""

from __future__ import annotations

import torch

from tests.gpu.on_device import OnDevice

ELSEWHERE = torch.device("meta")


def test_tensors_made_without_saying_where_are_made_on_the_device() -> None:
    with OnDevice(ELSEWHERE):
        made = (torch.ones(2), torch.zeros((2, 3), dtype=torch.int32), torch.tensor([1, 2]), torch.arange(3))
    assert {tensor.device for tensor in made} == {ELSEWHERE}


def test_numbers_of_a_cpu_generator_go_there_as_well() -> None:
    with OnDevice(ELSEWHERE):
        assert torch.randn((2, 3), generator=torch.Generator().manual_seed(0)).device == ELSEWHERE
    with OnDevice(torch.device("cpu")):
        drawn = torch.randn((2, 3), generator=torch.Generator().manual_seed(0))
    assert torch.equal(drawn, torch.randn((2, 3), generator=torch.Generator().manual_seed(0)))


def test_a_device_that_is_named_is_obeyed() -> None:
    with OnDevice(ELSEWHERE):
        assert torch.ones(2, device="cpu").device.type == "cpu"
