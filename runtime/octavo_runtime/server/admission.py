"""Admission: what is taken in, decided before anything is queued. Overload is answered, not queued without end."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

RETRY_AT_LEAST_SECONDS = 1.0
RETRY_AT_MOST_SECONDS = 30.0
FINISHES_KEPT = 32
"""Finished requests that the estimate of the next free place rests on."""


@dataclass(frozen=True)
class AdmissionLimits:
    """How much may be open at once."""

    max_num_seqs: int
    """Requests that run at once."""
    max_queued_requests: int
    """Requests beyond these that may wait."""
    max_queued_tokens: int
    """Prompt tokens of all requests without a first token yet; a single request is always let in."""

    @property
    def places(self) -> int:
        """Requests that may be open at once."""
        return self.max_num_seqs + self.max_queued_requests


@dataclass(frozen=True)
class Load:
    """What is open now."""

    open_requests: int
    """Running and waiting; each of the `n` answers of a request counts as one."""
    unanswered_prompt_tokens: int
    """Prompt tokens of open requests that have no first token yet."""


@dataclass(frozen=True)
class Rejection:
    """Why a request is not taken: a reason for the metric's label, a sentence for the client."""

    reason: str
    message: str


def reject(load: Load, limits: AdmissionLimits, prompt_tokens: int, answers: int = 1) -> Rejection | None:
    """Whether one more request of `prompt_tokens` and so many answers is too much; None lets it in.

    Answers share their prompt, so its tokens count once.
    """
    if load.open_requests + answers > limits.places:
        wanted = f" and this one asks for {answers} answers" if answers > 1 else ""
        return Rejection(
            "queue_requests",
            f"{load.open_requests} requests are open{wanted}; {limits.max_num_seqs} run at once and "
            f"{limits.max_queued_requests} may wait",
        )
    queued = load.unanswered_prompt_tokens
    if queued and queued + prompt_tokens > limits.max_queued_tokens:
        return Rejection(
            "queue_tokens",
            f"{queued} prompt tokens wait for their first answer and this request brings {prompt_tokens}; "
            f"at most {limits.max_queued_tokens} may wait",
        )
    return None


class FinishRate:
    """When a place is likely to be free, from how fast requests have been finishing."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=FINISHES_KEPT)

    def finished(self, now: float) -> None:
        """Note that a request ended at `now` (monotonic seconds)."""
        self._times.append(now)

    def retry_after_seconds(self, now: float) -> float:
        """Mean seconds between finishes, within 1 and 30; 1 while nothing is known."""
        if len(self._times) < 2:
            return RETRY_AT_LEAST_SECONDS
        gap = (now - self._times[0]) / len(self._times)
        return min(max(gap, RETRY_AT_LEAST_SECONDS), RETRY_AT_MOST_SECONDS)
