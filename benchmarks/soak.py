"""A real `octavo serve` at twice its capacity for minutes: random arrivals, clients that go away, answers that fork.

The server is a child on the loopback with the tiny trained model, few slots and a small pool, so that requests queue,
are preempted and are turned away all the time. Arrivals are a Poisson process at twice the rate at which the server was
seen to finish requests. At the end every page must be where it belongs, nobody may be left waiting, no violation may
have been counted, and whoever was turned away must have been told when to come back.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import httpx
import numpy as np

from octavo_runtime.contract import metrics

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "e2e" / "models" / "tiny-moe"
MINUTES, QUICK_MINUTES = 10.0, 0.3
CALIBRATION_SECONDS, QUICK_CALIBRATION_SECONDS = 10.0, 4.0
SLOTS, QUEUED, PAGE_SIZE, MODEL_LENGTH = 8, 16, 16, 512
POOL_BYTES = 640 << 10
"""About half of what the slots can ask for: preemption is part of it."""
OVERLOAD = 2.0
LEAST_ARRIVALS = 4 * (SLOTS + QUEUED)
"""However short the run is and however slow the machine: so many fill the queue."""
MOST_CLIENTS = 400
"""Open at once; an arrival beyond it is not sent, and counted."""
START_SECONDS, REQUEST_SECONDS, END_SECONDS, STOP_SECONDS = 180.0, 300.0, 300.0, 60.0
POLL_SECONDS = 0.5
VOCABULARY = 2048
PREFIXES = 4
LEAVES = 0.25
"""Share of clients that go away in the middle of an answer."""
FORKS = (1, 1, 1, 1, 2, 3)


@dataclass
class Seen:
    """What clients and the scraper met."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """Answers that should not be, at most a handful."""
    most_waiting: float = 0.0
    most_running: float = 0.0
    scrapes: int = 0

    def fault(self, text: str) -> None:
        """Note something that should not be."""
        self.outcomes["faults"] += 1
        if len(self.faults) < 10:
            self.faults.append(text)


@dataclass
class Clients:
    """Draws requests from one seed and sees each to its end."""

    http: httpx.AsyncClient
    seen: Seen
    random: np.random.Generator
    prefixes: list[list[int]]

    @classmethod
    def of(cls, http: httpx.AsyncClient, seen: Seen) -> Clients:
        """With four beginnings that most prompts share."""
        random = np.random.default_rng(7)
        prefixes = [random.integers(3, VOCABULARY, 96).tolist() for _ in range(PREFIXES)]
        return cls(http, seen, random, prefixes)

    async def one(self) -> None:
        """A request; it ends with an answer, with a refusal, or because the client goes away."""
        body = self._body()
        leaves_after = int(self.random.integers(0, 12)) if self.random.random() < LEAVES else None
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                outcome = await (self._stream if body["stream"] else self._whole)(body, leaves_after)
        except TimeoutError:
            self.seen.fault(f"no end within {REQUEST_SECONDS} s")
        except httpx.HTTPError as error:
            self.seen.fault(f"{type(error).__name__}: {error}")
        else:
            self.seen.outcomes[outcome] += 1

    def _body(self) -> dict[str, object]:
        random = self.random
        prompt = list(self.prefixes[random.integers(PREFIXES)]) if random.random() < 0.7 else []
        prompt += random.integers(3, VOCABULARY, random.integers(1, 160)).tolist()
        return {
            "model": MODEL.name,
            "prompt": prompt,
            "max_tokens": int(random.integers(1, 128)),
            "temperature": 1.0,
            "ignore_eos": bool(random.random() < 0.5),
            "n": int(random.choice(FORKS)),
            "priority": int(random.integers(-2, 3)),
            "cache_salt": str(random.choice(["one", "one", "other"])),
            "stream": bool(random.random() < 0.7),
        }

    async def _stream(self, body: dict[str, object], leaves_after: int | None) -> str:
        finished: set[int] = set()
        events = 0
        async with self.http.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != HTTPStatus.OK:
                return self._refused(answer, (await answer.aread()).decode())
            async for line in answer.aiter_lines():
                if not line:
                    continue
                events += 1
                if leaves_after is not None and events > leaves_after:
                    return "left"
                if line == "data: [DONE]":
                    return self._complete(body, finished)
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    self.seen.fault(f"in a stream: {event['error']}")
                    return "failed"
                finished.update(choice["index"] for choice in event["choices"] if choice["finish_reason"])
        self.seen.fault("a stream ended without [DONE]")
        return "failed"

    async def _whole(self, body: dict[str, object], leaves_after: int | None) -> str:
        try:
            async with asyncio.timeout(None if leaves_after is None else leaves_after / 20):
                answer = await self.http.post("/v1/completions", json=body)
        except TimeoutError:
            return "left"
        if answer.status_code != HTTPStatus.OK:
            return self._refused(answer, answer.text)
        choices = answer.json()["choices"]
        return self._complete(body, {choice["index"] for choice in choices if choice["finish_reason"]})

    def _complete(self, body: dict[str, object], finished: set[int]) -> str:
        if finished != set(range(int(str(body["n"])))):
            self.seen.fault(f"{body['n']} answers were asked for, {sorted(finished)} ended")
            return "failed"
        return "answered"

    def _refused(self, answer: httpx.Response, text: str) -> str:
        if answer.status_code in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
            if int(answer.headers.get("retry-after", "0")) < 1:
                self.seen.fault("turned away without a time to come back")
            return "turned_away"
        self.seen.fault(f"{answer.status_code}: {text[:200]}")
        return "failed"


async def scrape(http: httpx.AsyncClient) -> dict[str, float]:
    """All samples of /metrics by name and labels."""
    answer = await http.get("/metrics")
    answer.raise_for_status()
    samples: dict[str, float] = {}
    for line in answer.text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            samples[name] = float(value)
    return samples


async def watch(http: httpx.AsyncClient, seen: Seen) -> None:
    """Scrape until cancelled."""
    while True:
        samples = await scrape(http)
        seen.scrapes += 1
        seen.most_waiting = max(seen.most_waiting, samples[metrics.REQUESTS_WAITING])
        seen.most_running = max(seen.most_running, samples[metrics.REQUESTS_RUNNING])
        await asyncio.sleep(POLL_SECONDS)


async def saturate(clients: Clients, seconds: float) -> float:
    """Requests per second that end while every place is taken at all times."""
    deadline = time.monotonic() + seconds

    async def keep_busy() -> None:
        while time.monotonic() < deadline:
            await clients.one()

    before, start = _ended(clients.seen), time.monotonic()
    await asyncio.gather(*(keep_busy() for _ in range(SLOTS)))
    return (_ended(clients.seen) - before) / (time.monotonic() - start)


def _ended(seen: Seen) -> int:
    return seen.outcomes["answered"] + seen.outcomes["left"]


async def overload(clients: Clients, rate: float, seconds: float) -> None:
    """Poisson arrivals at `rate` per second for `seconds`, then until the last client has ended."""
    deadline, due = time.monotonic() + seconds, time.monotonic()
    open_clients: set[asyncio.Task[None]] = set()
    while due < deadline:
        due += float(clients.random.exponential(1 / rate))
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        if len(open_clients) >= MOST_CLIENTS:
            clients.seen.outcomes["not_sent"] += 1
            continue
        task = asyncio.create_task(clients.one())
        open_clients.add(task)
        task.add_done_callback(open_clients.discard)
    await asyncio.gather(*open_clients)


async def settled(http: httpx.AsyncClient) -> dict[str, float]:
    """Metrics once nothing runs or waits, or after a minute as they are then."""
    deadline = time.monotonic() + END_SECONDS / 2
    while True:
        samples = await scrape(http)
        busy = samples[metrics.REQUESTS_RUNNING] + samples[metrics.REQUESTS_WAITING] + samples[metrics.KV_TOKENS_USED]
        if not busy or time.monotonic() > deadline:
            return samples
        await asyncio.sleep(POLL_SECONDS)


async def soak(port: int, seconds: float, calibration: float) -> dict[str, object]:
    """Load the server, let it come to rest, and look at what is left."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    address = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=address, timeout=REQUEST_SECONDS, limits=limits) as http:
        seen = Seen()
        clients = Clients.of(http, seen)
        watcher = asyncio.create_task(watch(http, seen))
        try:
            capacity = await saturate(clients, calibration)
            seen.outcomes.clear()
            start = time.monotonic()
            async with asyncio.timeout(seconds + END_SECONDS):
                await overload(clients, max(OVERLOAD * capacity, LEAST_ARRIVALS / seconds), seconds)
            lasted = time.monotonic() - start
        finally:
            watcher.cancel()
        rest = await settled(http)
    return figures_of(seen, rest, capacity, lasted)


def figures_of(seen: Seen, rest: dict[str, float], capacity: float, lasted: float) -> dict[str, object]:
    """The figures, from what was met and the metrics `rest` when all was over; `failed` names what does not hold."""
    config = next(name for name in rest if name.startswith(metrics.VLLM_CACHE_CONFIG))
    pages = int(config.partition('num_gpu_blocks="')[2].partition('"')[0])
    free, aside = rest[metrics.KV_PAGES_FREE], rest[metrics.KV_PAGES_SET_ASIDE]
    retained = rest[metrics.KV_TOKENS_RETAINED] / PAGE_SIZE
    violations = sum(value for name, value in rest.items() if name.startswith(f"{metrics.INTEGRITY_VIOLATIONS}_total"))
    bound = SLOTS + QUEUED
    figures: dict[str, object] = {
        "minutes": round(lasted / 60, 2),
        "capacity_requests_per_second": round(capacity, 2),
        **{name: seen.outcomes[name] for name in ("answered", "left", "turned_away", "not_sent", "faults")},
        "most_running": int(seen.most_running),
        "most_waiting": int(seen.most_waiting),
        "waiting_bound": bound,
        "scrapes": seen.scrapes,
        "pages": pages,
        "pages_free": int(free),
        "pages_retained": int(retained),
        "pages_set_aside": int(aside),
        "tokens_used_at_rest": int(rest[metrics.KV_TOKENS_USED]),
        "running_at_rest": int(rest[metrics.REQUESTS_RUNNING]),
        "waiting_at_rest": int(rest[metrics.REQUESTS_WAITING]),
        "violations": int(violations),
        "engine_steps": int(rest[f"{metrics.ENGINE_STEPS}_total"]),
        "preemptions": int(rest[f"{metrics.PREEMPTIONS}_total"]),
        "forks": int(rest[f"{metrics.FORKS}_total"]),
        "prefix_hit_tokens": int(rest[f"{metrics.PREFIX_HIT_TOKENS}_total"]),
        "audits": int(rest[f"{metrics.INTEGRITY_AUDITS}_total"]),
    }
    conditions = {
        "a request ended as none should": not seen.outcomes["faults"],
        "requests are left": not figures["running_at_rest"] and not figures["waiting_at_rest"],
        "pages are missing or doubled": rest[metrics.KV_TOKENS_USED] == 0 and free + retained + aside == pages,
        "more waited than may": seen.most_waiting <= bound,
        "violations were counted": not violations,
        "nobody was turned away: it was no overload": seen.outcomes["turned_away"] > 0,
    }
    failed = [text for text, holds in conditions.items() if not holds] + seen.faults
    return figures | ({"failed": failed} if failed else {})


def run(*, quick: bool, minutes: float | None = None) -> dict[str, object]:
    """The soak; `failed` in the figures names what did not hold."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the child is ended, too
    seconds = 60 * (minutes or (QUICK_MINUTES if quick else MINUTES))
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as (process, port):
        figures = asyncio.run(soak(port, seconds, QUICK_CALIBRATION_SECONDS if quick else CALIBRATION_SECONDS))
        process.send_signal(signal.SIGTERM)
        code = process.wait(STOP_SECONDS)
    if code:
        failed = figures.setdefault("failed", [])
        assert isinstance(failed, list)
        failed.append(f"the server ended with {code}")
    return figures | {"exit_code": code}


@contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`octavo serve` as a child, ready; killed in the end if it still runs."""
    port, log = _free_port(), folder / "log"
    flags = {
        "--host": "127.0.0.1",
        "--port": port,
        "--max-num-seqs": SLOTS,
        "--max-queued-requests": QUEUED,
        "--max-model-len": MODEL_LENGTH,
        "--kv-cache-memory-bytes": POOL_BYTES,
        "--page-size": PAGE_SIZE,
        "--drain-announce-seconds": 0,
        "--log-format": "json",
    }
    argv = [sys.executable, "-m", "octavo_runtime.cli.main", "serve", str(MODEL)]
    argv += [f"{name}={value}" for name, value in flags.items()]
    environment = {**os.environ, "OCTAVO_TERMINATION_LOG": str(folder / "last-word")}
    with log.open("wb") as output, subprocess.Popen(argv, stdout=output, stderr=output, env=environment) as process:
        try:
            _wait_ready(process, port, log)
            yield process, port
        finally:
            if process.poll() is None:
                process.kill()


def _wait_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=5) as http:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if http.get("/ready").status_code == HTTPStatus.OK:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
    raise RuntimeError(f"the server did not become ready:\n{log.read_text(encoding='utf-8')[-4000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def sheet(figures: dict[str, object]) -> str:
    """The figures for people."""
    return "\n".join(
        [
            f"octavo serve at {OVERLOAD:.0f} times its capacity for {figures['minutes']} minutes, {SLOTS} slots:",
            "",
            *(f"{name.replace('_', ' '):32}{value!s:>12}" for name, value in figures.items() if name != "failed"),
        ]
    )
