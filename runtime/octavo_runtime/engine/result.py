"""What a step gives to the outside, and what the engine's process needs of an engine. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from octavo_runtime.engine.messages import EngineStats, RequestFailed, Submit, Token, Violation


@dataclass(frozen=True)
class StepResult:
    """Tokens that may leave, requests that ended with an error, and the violations behind them."""

    tokens: tuple[Token, ...] = ()
    failures: tuple[RequestFailed, ...] = ()
    violations: tuple[Violation, ...] = ()


class Steps(Protocol):
    """An engine as its process sees it."""

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        ...

    def submit(self, message: Submit) -> None:
        """Take a request."""
        ...

    def cancel(self, request_id: str, index: int | None = None) -> None:
        """Forget a request, or only its answer `index`."""
        ...

    def step(self) -> StepResult:
        """Run one step."""
        ...

    def audit(self) -> None:
        """Check the books; raises when they do not balance."""
        ...

    def self_check(self) -> None:
        """Ask the integrity check whether it still speaks; `stats` tells."""
        ...

    def stats(self) -> EngineStats:
        """Counters and gauges."""
        ...
