"""EngineRequest: everything the engine knows of one request while it lives."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_runtime.engine.messages import Sampling, Submit
from octavo_runtime.kv.pool import Holding


@dataclass(eq=False)
class EngineRequest:
    """Mutable state of one request; scheduler and engine are its only writers.

    `tokens` is the prompt and every token generated so far. The first `computed` of them have keys and values in the
    cache; the rest is what the next steps have to run. A preempted request keeps its tokens and starts again at 0.
    """

    id: str
    order: int
    """Arrival number: the lower, the older."""
    tokens: list[int]
    prompt_len: int
    max_tokens: int
    sampling: Sampling
    stop_tokens: frozenset[int]
    computed: int = 0
    holding: Holding | None = None
    """Present exactly while the request runs."""
    slot: int | None = None
    """Row of the persistent block table, while the request runs."""
    recomputed: bool = False
    """Whether an integrity violation has already made it start again once."""

    @classmethod
    def of(cls, message: Submit, order: int) -> EngineRequest:
        """A request as it arrives."""
        return cls(
            id=message.request,
            order=order,
            tokens=list(message.prompt),
            prompt_len=len(message.prompt),
            max_tokens=message.max_tokens,
            sampling=message.sampling,
            stop_tokens=frozenset(message.stop_tokens),
        )

    @property
    def pending(self) -> int:
        """Known tokens without keys and values: 1 while decoding, more while (re)computing the prompt."""
        return len(self.tokens) - self.computed

    @property
    def num_generated(self) -> int:
        """Length of the answer so far."""
        return len(self.tokens) - self.prompt_len
