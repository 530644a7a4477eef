from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.kernels.cpu.variants import VARIANTS, kernels_of


@pytest.fixture(scope="module", params=VARIANTS)
def each_variant(request: pytest.FixtureRequest) -> Iterator[None]:
    """The tests of a module that uses it run once for each instruction set of this CPU."""
    with kernels_of(request.param):
        yield


@pytest.fixture
def two_threads() -> Iterator[None]:
    """What the kernels take as the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
