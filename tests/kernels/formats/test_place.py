"""The place of a page: two numbers in one word, in order of fill within one life of a page."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.errors import KernelInputError
from octavo_kernels.formats.place import fill_of, filled_to, logical_of, place_of, require_page_size

LOGICAL, FILL = st.integers(0, 2**23 - 1), st.integers(0, 128)


@settings(deadline=None, max_examples=30)
@given(logical=LOGICAL, fill=FILL, later=FILL)
def test_a_place_gives_back_both_of_its_numbers(logical: int, fill: int, later: int) -> None:
    place = place_of(logical, fill)
    assert 0 <= place < 2**31
    assert (logical_of(place), fill_of(place)) == (logical, fill)
    assert filled_to(place, later) == place_of(logical, later)
    assert max(place, place_of(logical, later)) == place_of(logical, max(fill, later))


@settings(deadline=None, max_examples=20)
@given(places=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1), fill=FILL)
def test_tensors_give_what_integers_give_even_of_a_damaged_word(places: list[int], fill: int) -> None:
    words = torch.tensor(places, dtype=torch.int32)
    assert logical_of(words).tolist() == [logical_of(place) for place in places]
    assert fill_of(words).tolist() == [fill_of(place) for place in places]
    filled = filled_to(words, torch.full_like(words, fill))
    assert filled.dtype == torch.int32
    assert filled.tolist() == [filled_to(place, fill) for place in places]
    assert torch.equal(place_of(logical_of(words), fill_of(words)), words)


@pytest.mark.parametrize("page_size", [0, -1, 129, 256])
def test_a_page_that_a_fill_mark_cannot_count_is_refused(page_size: int) -> None:
    with pytest.raises(KernelInputError, match=f"page_size is {page_size}, needed 1 to 128"):
        require_page_size(page_size)
