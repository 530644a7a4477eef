"""The verdict word fails closed: only the exact step number is clean."""

from __future__ import annotations

import functools
import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.formats.verdict import UNCONCLUDED, Finding, findings_of, is_clean, reasons_of, word_of

steps = st.integers(1, 2**31 - 1)


@settings(deadline=None)
@given(steps, st.integers(-(2**31), 2**31 - 1))
def test_a_word_is_clean_exactly_when_it_is_the_step(step: int, word: int) -> None:
    assert is_clean(word, step) == (word == step)
    assert (reasons_of(word, step) == ()) == (word == step)


@settings(deadline=None)
@given(steps, st.sets(st.sampled_from(list(Finding))))
def test_no_set_of_findings_equals_a_step(step: int, findings: set[Finding]) -> None:
    word = word_of(functools.reduce(operator.or_, findings, Finding(0)))
    assert -(2**31) <= word < 0
    assert not is_clean(word, step)
    assert set(findings_of(word, step)) == findings


@pytest.mark.parametrize("word", [0, 4, 6, UNCONCLUDED])
def test_an_absent_stale_or_unconcluded_word_is_called_a_stale_verdict(word: int) -> None:
    assert reasons_of(word, step=5) == ("stale_verdict",)


def test_step_zero_is_never_clean() -> None:
    assert not is_clean(0, 0)


def test_findings_are_named_for_metrics() -> None:
    assert reasons_of(word_of(Finding.TAG | Finding.WRITER), 1) == ("tag", "writer")
