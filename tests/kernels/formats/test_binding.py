"""The row binding: host and device agree to the bit, and every way to misplace a page changes the sum."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.formats.binding import add, mix, mix_tensor, subtract

words = st.integers(0, 2**32 - 1)


def as_int32(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


@settings(deadline=None)
@given(words, words, words, words)
def test_the_tensor_form_equals_the_integer_form(nonce: int, logical: int, page: int, tag: int) -> None:
    arguments = [torch.tensor([as_int32(word)], dtype=torch.int32) for word in (nonce, logical, page, tag)]
    assert mix_tensor(*arguments).tolist() == [mix(nonce, logical, page, tag)]


@settings(deadline=None)
@given(words, words, words, words)
def test_a_signed_pattern_is_the_same_word(nonce: int, logical: int, page: int, tag: int) -> None:
    assert mix(as_int32(nonce), as_int32(logical), as_int32(page), as_int32(tag)) == mix(nonce, logical, page, tag)


def test_known_value_so_that_the_function_never_changes_silently() -> None:
    assert mix(1, 2, 3, 4) == 4614239631524409535


@settings(deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_adding_wraps_as_the_device_does(terms: list[int]) -> None:
    total = 0
    for term in terms:
        total = add(total, term)
    assert total == torch.tensor(terms, dtype=torch.int64).sum().item()
    for term in terms:
        total = subtract(total, term)
    assert total == 0


def test_one_million_neighbouring_arguments_give_distinct_terms() -> None:
    nonce, logical, page, tag = (t.flatten() for t in torch.meshgrid(*[torch.arange(32)] * 4, indexing="ij"))
    assert mix_tensor(nonce, logical, page, tag).unique().numel() == 32**4  # type: ignore[no-untyped-call]


def test_each_bit_of_a_term_is_set_about_half_of_the_time() -> None:
    terms = mix_tensor(torch.tensor(7), torch.arange(4096), torch.arange(4096) + 1, torch.tensor(2))
    shares = torch.stack([((terms >> bit) & 1).double().mean() for bit in range(64)])
    assert ((shares - 0.5).abs() < 0.05).all()
