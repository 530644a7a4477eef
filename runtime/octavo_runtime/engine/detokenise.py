"""From tokens to text, piece by piece: never half a character, and nothing that a stop string may still swallow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
"""What a decoder writes for bytes that are not (yet) UTF-8."""

CONTEXT_TOKENS = 6
"""Tokens of the prompt's end that are decoded along: whether a piece starts with a space may depend on them."""

UNFINISHED_TOKENS = 3
"""Tokens that an unfinished character may span: UTF-8 has at most 4 bytes, and a token has at least one."""

MAX_PENDING_TOKENS = 8
"""Tokens whose text may wait for its end. More wait only when bytes that are no UTF-8 offer nowhere to cut."""

Decode = Callable[[Sequence[int]], str]


class Detokeniser:
    """Incremental decoding of one answer.

    The text of a token depends on its neighbours (a character may span tokens, some tokenizers drop a leading space),
    so a window is decoded twice, without and with the new tokens, and the difference is the new text. The window
    starts where text last came out, and text comes out at the latest after `MAX_PENDING_TOKENS`, so the work per token
    does not grow with the answer, whatever bytes the model writes.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int]) -> None:
        self._decode = decode
        self._window = list(prompt[-CONTEXT_TOKENS:])
        self._known = len(self._window)
        """Tokens at the window's start whose text has come out."""

    def push(self, token: int) -> str:
        """Text that `token` completes; empty while it ends inside a character."""
        self._window.append(token)
        return self._take(final=False)

    def finish(self) -> str:
        """What is left at the end of the answer: bytes that never became a character show as U+FFFD."""
        return self._take(final=True)

    def _take(self, *, final: bool) -> str:
        before = self._decode(self._window[: self._known])
        after = self._decode(self._window)
        end = len(self._window)
        if after.endswith(REPLACEMENT) and not final:
            end = self._safe_end(after)
        if end == self._known:
            return ""
        text = after if end == len(self._window) else self._decode(self._window[:end])
        self._window, self._known = self._window[self._known :], end - self._known
        return text[len(before) :]

    def _safe_end(self, after: str) -> int:
        """Up to where a window that may end inside a character can come out: where its halves decode to the whole."""
        size = len(self._window)
        for end in range(size - UNFINISHED_TOKENS, self._known, -1):
            if self._decode(self._window[:end]) + self._decode(self._window[end:]) == after:
                return end
        return size if size - self._known >= MAX_PENDING_TOKENS else self._known


class StopStrings:
    """Cuts an answer at the first of its stop strings; holds back text that may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """(text that is certain to belong to the answer, whether a stop string was found)."""
        held = self._held + text
        found = [at for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            self._held = ""
            return held[: min(found)], True
        keep = max((_overlap(held, stop) for stop in self._stops), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep], False

    def finish(self) -> str:
        """What was held back, at the end of an answer without a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
