"""Refused: an input that cannot work, said with a reason for machines and a sentence for people."""

from __future__ import annotations


class Refused(Exception):
    """A user's input cannot work. Shown without a traceback; `retryable` says that the cause may go away by itself.

    `reason` is CamelCase; `message` names the field or file, the value seen, and what to do.
    """

    def __init__(self, reason: str, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retryable = retryable
