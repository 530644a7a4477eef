"""A real server on loopback: uvicorn, a real engine process, an httpx client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import httpx

from octavo_runtime.engine.messages import Failed
from octavo_runtime.engine.process import EngineProgram
from octavo_runtime.server.run import Server, bind
from octavo_runtime.server.settings import ServeSettings
from tests.runtime.server.echo import VOCABULARY, byte_codec, program

MODEL = "echo"
WAIT_SECONDS = 60.0
SETTINGS = ServeSettings(
    served_model=MODEL,
    vocab_size=VOCABULARY,
    max_num_seqs=4,
    host="127.0.0.1",
    announce_seconds=0.0,
    drain_seconds=0.0,
)


@dataclass
class Serving:
    """A server that runs in this very event loop."""

    http: httpx.AsyncClient
    port: int
    task: asyncio.Task[Failed | None]

    async def complete(self, prompt: str, **fields: object) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"model": MODEL, "prompt": prompt, **fields})

    async def chat(self, text: str, **fields: object) -> httpx.Response:
        messages = [{"role": "user", "content": text}]
        return await self.http.post("/v1/chat/completions", json={"model": MODEL, "messages": messages, **fields})

    async def metric(self, line: str) -> float:
        """The value of the sample that `line` (name and labels) names."""
        text = (await self.http.get("/metrics")).text
        found = [row.rsplit(" ", 1)[1] for row in text.splitlines() if row.rsplit(" ", 1)[0] == line]
        assert len(found) == 1, f"{line} in {text}"
        return float(found[0])

    async def ended(self) -> Failed | None:
        return await asyncio.wait_for(self.task, WAIT_SECONDS)


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition, which may be a coroutine function; fails after a minute."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            met = condition()
            if await met if asyncio.iscoroutine(met) else met:
                return
            await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(
    engine: EngineProgram | None = None,
    *,
    ready: bool = True,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    **changes: object,
) -> AsyncIterator[Serving]:
    """Serve until the block ends; `changes` are fields of ServeSettings."""
    settings = replace(SETTINGS, **changes)  # type: ignore[arg-type]
    sock = bind(settings.host, 0)
    port = sock.getsockname()[1]
    task = asyncio.create_task(Server(settings, engine or program(), byte_codec, clock, pause).run(sock))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_SECONDS) as http:
        server = Serving(http, port, task)
        try:

            async def is_ready() -> bool:
                return task.done() or (await http.get("/ready")).status_code == 200

            if ready:
                await until(is_ready)
            yield server
        finally:
            task.cancel()
            await asyncio.wait({task}, timeout=WAIT_SECONDS)
