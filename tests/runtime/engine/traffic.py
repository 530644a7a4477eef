"""Random traffic: prompts that begin alike, several answers, priorities, salts, and clients that go away."""

from __future__ import annotations

import random
from dataclasses import dataclass

from octavo_runtime.engine.messages import Sampling, Submit

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0)


@dataclass(frozen=True)
class TrafficShape:
    """What requests look like, and how often they come."""

    arrival: float = 0.7
    """Chance of a request before each step."""
    open_limit: int = 12
    """Requests that are open at once: no more come until some have ended."""
    cancel: float = 0.02
    """Chance that some open request is cancelled before a step."""
    prefixes: int = 4
    """Beginnings that prompts share."""
    prompt_limit: int = 32
    answer_limit: int = 16
    vocabulary: int = 500


class Traffic:
    """Draws from one seed; knows which requests are open."""

    def __init__(self, seed: int, shape: TrafficShape = TrafficShape()) -> None:
        self.shape = shape
        self.open: dict[str, Submit] = {}
        self._rng = random.Random(seed)
        self._count = 0
        self._prefixes = [self._tokens(shape.prompt_limit // 2) for _ in range(shape.prefixes)]

    def arrival(self) -> Submit | None:
        """The request that comes before the next step, if any; it is open until `ended`."""
        rng, shape = self._rng, self.shape
        if len(self.open) >= shape.open_limit or rng.random() >= shape.arrival:
            return None
        self._count += 1
        prompt = list(rng.choice(self._prefixes)) if rng.random() < 0.7 else []
        prompt += self._tokens(rng.randint(1, shape.prompt_limit - len(prompt)))
        message = Submit(
            f"r{self._count}",
            prompt,
            rng.randint(1, shape.answer_limit),
            GREEDY,
            [],
            n=rng.choice((1, 1, 1, 1, 2, 3)),
            priority=rng.choice((0, 0, 0, -1, 1)),
            cache_salt=rng.choice(("", "", "other")),
        )
        self.open[message.request] = message
        return message

    def leaver(self) -> str | None:
        """The open request whose client goes away before the next step, if any."""
        if self.open and self._rng.random() < self.shape.cancel:
            return self._rng.choice(list(self.open))
        return None

    def ended(self, request: str) -> None:
        """Nothing more comes of this request."""
        self.open.pop(request, None)

    def _tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(1, self.shape.vocabulary) for _ in range(count)]
