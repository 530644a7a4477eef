"""Text comes out whole characters at a time, and never past a stop string."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_runtime.engine.detokenise import MAX_PENDING_TOKENS, UNFINISHED_TOKENS, Detokeniser, StopStrings
from tests.runtime.server.echo import byte_tokenizer

TOKENIZER = byte_tokenizer()


def decode(tokens: Sequence[int]) -> str:
    return TOKENIZER.decode(list(tokens))


def encode(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text).ids
    return ids


FIRST, SECOND, THIRD, LAST = encode("🙂")
"""Tokens of one byte each; alone they are no UTF-8."""


@given(st.text(), st.text())
def test_the_pieces_are_the_text(prompt: str, answer: str) -> None:
    detokeniser = Detokeniser(decode, encode(prompt))
    pieces = [detokeniser.push(token) for token in encode(answer)] + [detokeniser.finish()]
    assert "".join(pieces) == answer
    assert not any("\ufffd" in piece for piece in pieces) or "\ufffd" in answer


@given(st.lists(st.integers(0, 255), max_size=40))
def test_any_bytes_come_out_as_the_whole_decodes(tokens: list[int]) -> None:
    detokeniser = Detokeniser(decode, [])
    text = "".join(detokeniser.push(token) for token in tokens) + detokeniser.finish()
    assert text == decode(tokens)


def test_half_a_character_waits_for_its_other_half() -> None:
    detokeniser = Detokeniser(decode, encode("a"))
    assert [detokeniser.push(token) for token in encode("🙂!")] == ["", "", "", "🙂", "!"]


@pytest.mark.parametrize(
    ("answer", "per_token"),
    [
        (encode("x" * 1000), 10),
        (encode("\ufffd" * 300), 100),
        ([FIRST] * 1000, 100),
        ([FIRST, SECOND] * 500, 100),
        ([FIRST, SECOND, THIRD] * 300, 100),
    ],
)
def test_the_work_per_token_does_not_grow_with_the_answer(answer: list[int], per_token: int) -> None:
    decoded = 0

    def counting(tokens: Sequence[int]) -> str:
        nonlocal decoded
        decoded += len(tokens)
        return decode(tokens)

    detokeniser = Detokeniser(counting, encode("prompt"))
    for token in answer:
        detokeniser.push(token)
    assert decoded < per_token * len(answer)


def test_bytes_that_never_become_text_come_out_while_the_answer_goes_on() -> None:
    detokeniser = Detokeniser(decode, [])
    text = "".join(detokeniser.push(LAST) for _ in range(100))
    assert len(text) == 100 - UNFINISHED_TOKENS


def test_a_character_after_broken_bytes_is_whole() -> None:
    detokeniser = Detokeniser(decode, [])
    broken = [LAST] * 20
    pieces = [detokeniser.push(token) for token in [*broken, *encode("🙂!")]]
    assert "".join(pieces) == "\ufffd" * 20 + "🙂!"


def test_tokens_that_offer_nowhere_to_cut_come_out_at_the_limit() -> None:
    def decode_pairs(tokens: Sequence[int]) -> str:
        return b"".join((b"\xf0", b"\x9f\xf0")[token] for token in tokens).decode(errors="replace")

    detokeniser = Detokeniser(decode_pairs, [])
    pieces = [detokeniser.push(token) for token in [0] + [1] * 20]
    assert max(len(piece) for piece in pieces) == MAX_PENDING_TOKENS


def cut(text: str, stops: Sequence[str], sizes: Sequence[int]) -> tuple[str, bool]:
    """Feed `text` in pieces of the given sizes."""
    scanner, out, at = StopStrings(stops), "", 0
    for size in [*sizes, len(text)]:
        piece, at = text[at : at + size], at + size
        certain, stopped = scanner.push(piece)
        out += certain
        if stopped:
            return out, True
    return out + scanner.finish(), False


@given(
    st.text(alphabet="ab", max_size=20),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 4), max_size=20),
)
def test_an_answer_ends_before_the_first_stop_string_however_it_is_cut(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    out, stopped = cut(text, stops, sizes)
    places = [text.find(stop) for stop in stops if stop in text]
    assert stopped == bool(places)
    if not places:
        assert out == text
    else:
        assert text.startswith(out)
        assert len(out) <= max(places)
        assert not any(stop in out for stop in stops)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [(["one t", "wo"], "one "), (["one tw", "x"], "one twx"), (["two"], ""), (["tw", "tw", "o!"], "tw")],
)
def test_text_that_may_begin_a_stop_string_is_held_back(pieces: list[str], expected: str) -> None:
    scanner, out = StopStrings(["two"]), ""
    for piece in pieces:
        certain, stopped = scanner.push(piece)
        assert "two" not in out + certain
        out += certain
        if stopped:
            break
    else:
        out += scanner.finish()
    assert out == expected
