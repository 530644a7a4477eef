"""EngineRequest: everything the engine knows of one answer while it lives."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from octavo_runtime.engine.messages import Sampling, Submit
from octavo_runtime.kv.holding import Holding
from octavo_runtime.kv.prefix import Chain

PRIORITY_SECONDS = 30.0
"""What one step of priority is worth: a request of priority -1 is treated as if it had come so much earlier."""


@dataclass(eq=False)
class EngineRequest:
    """Mutable state of one answer; scheduler and engine are its only writers.

    `tokens` is the prompt and every token generated so far. The first `computed` of them have keys and values in the
    cache; the rest is what the next steps have to run. A preempted request keeps its tokens and starts again at 0, or
    at what the prefix cache still has of them.
    """

    id: str
    index: int
    """Which of the request's answers; they are forks of answer 0."""
    order: int
    """Arrival number, unique: the lower, the older."""
    deadline: float
    """Virtual, in seconds of the engine's clock: arrival + priority * PRIORITY_SECONDS."""
    tokens: list[int]
    prompt_len: int
    max_tokens: int
    sampling: Sampling
    stop_tokens: frozenset[int]
    cache_salt: str = ""
    parent: EngineRequest | None = None
    """The answer whose prompt pages this one shares when it starts while that one runs."""
    chain: Chain | None = None
    """Hashes of the pages of `tokens`, from the moment the scheduler knows the request."""
    computed: int = 0
    holding: Holding | None = None
    """Present exactly while the request runs."""
    slot: int | None = None
    """Row of the block table, while the request runs."""
    recomputed: bool = False
    """Whether an integrity violation has already made it start again once."""
    rank: tuple[float, int] = field(init=False)
    """Place in line: by deadline, then by arrival. Nothing changes it."""

    def __post_init__(self) -> None:
        self.rank = (self.deadline, self.order)

    @classmethod
    def answers(cls, message: Submit, order: int, arrival: float) -> list[EngineRequest]:
        """The `n` answers of a request that arrives at `arrival` seconds; they take `n` numbers from `order` on."""
        answers: list[EngineRequest] = []
        for index in range(message.n):
            answers.append(
                cls(
                    id=message.request,
                    index=index,
                    order=order + index,
                    deadline=arrival + message.priority * PRIORITY_SECONDS,
                    tokens=list(message.prompt),
                    prompt_len=len(message.prompt),
                    max_tokens=message.max_tokens,
                    sampling=msgspec.structs.replace(message.sampling, seed=message.sampling.seed + index),
                    stop_tokens=frozenset(message.stop_tokens),
                    cache_salt=message.cache_salt,
                    parent=answers[0] if index else None,
                )
            )
        return answers

    @property
    def pending(self) -> int:
        """Known tokens without keys and values: 1 while decoding, more while (re)computing the prompt."""
        return len(self.tokens) - self.computed

    @property
    def num_generated(self) -> int:
        """Length of the answer so far."""
        return len(self.tokens) - self.prompt_len
