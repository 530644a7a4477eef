"""ServeSettings: what the HTTP process is told at start, frozen at the edge."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_runtime.contract.container import DRAIN_ANNOUNCE_SECONDS, HTTP_PORT


@dataclass(frozen=True)
class ServeSettings:
    """Of the HTTP side; the engine's are `EngineSettings`."""

    served_model: str
    vocab_size: int
    max_num_seqs: int
    host: str = "0.0.0.0"  # noqa: S104 - a server in a pod answers on the pod's address
    port: int = HTTP_PORT
    drain_seconds: float = 120.0
    """How long a drain waits for open requests."""
    announce_seconds: float = DRAIN_ANNOUNCE_SECONDS
    """How long new requests are still served after a drain began."""
    stall_seconds: float = 120.0
    """When the engine gave no sign of life for this long, open requests fail and the server ends. Longer than any step:
    a prefill chunk of a large model on a CPU takes tens of seconds."""
    max_queued_requests: int = 256
    max_queued_tokens: int | None = None
    """Prompt tokens that may wait for a first token; by default twice what the KV pool holds."""
    max_body_bytes: int | None = None
    """By default 64 bytes for every token that a request may have, at least 1 MiB: text has about 5 bytes a token, and
    up to six times that when JSON escapes it."""
    unready_after_violations: int | None = None
    """Readiness fails once the integrity check counted so many violations. Off by default: taking replicas out of
    traffic is the operator's decision, which has a budget; this is for use without one."""
    max_body_seconds: float = 30.0
    """How long a request's body may take to arrive: it holds memory, and a drain waits for it, before admission."""
