"""The training run: one single-threaded process per core, gradients averaged, everything needed to go on saved.

Two processes beat two threads here: between the many small operations of a small model nothing waits for anything.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from . import corpus, vocabulary
from .batches import Batch, Mixture, batch_at
from .model import TinyMoe
from .optimizer import Muon
from .recall import ANSWER_WEIGHT
from .recipe import ModelShape, Schedule

GRADIENT_CLIP = 1.0
SAVE_EVERY_SECONDS = 150.0
VALIDATION_EVERY_REPORTS = 6
STATE_FILE = "state.pt"


@dataclass(frozen=True)
class Run:
    """Where and how long one training run works."""

    sources: Path
    """The documentation's ``_sources`` folder."""
    work: Path
    """Folder for the tokenizer, the saved state and the log; an interrupted run goes on from here."""
    minutes: float
    """Wall-clock budget of this call: the schedule is compressed when the tokens would not fit in it."""
    workers: int
    schedule: Schedule = field(default_factory=Schedule)
    report_every_steps: int = 10


@dataclass
class Progress:
    """What changes from step to step besides the weights."""

    step: int = 0
    fraction: float = 0.0
    tokens: int = 0
    seconds: float = 0.0


def train(run: Run) -> Path:
    """Train (or go on training) and return the file that holds the final state."""
    run.work.mkdir(parents=True, exist_ok=True)
    documents = corpus.read(run.sources)
    tokenizer_file = run.work / "tokenizer.json"
    if not tokenizer_file.exists():
        vocabulary.train([d.text for d in documents.train]).save(str(tokenizer_file))
    with tempfile.TemporaryDirectory() as rendezvous:
        spawn(  # type: ignore[no-untyped-call]
            _worker, args=(run, f"file://{rendezvous}/store"), nprocs=run.workers
        )
    return run.work / STATE_FILE


def _worker(rank: int, run: Run, rendezvous: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=run.workers)
    try:
        _Trainer(rank, run).loop()
    finally:
        dist.destroy_process_group()


class _Trainer:
    """One rank's share of the run."""

    def __init__(self, rank: int, run: Run) -> None:
        self.rank, self.run, self.schedule = rank, run, run.schedule
        documents = corpus.read(run.sources)
        tokenizer = Tokenizer.from_file(str(run.work / "tokenizer.json"))
        self.mixture = Mixture.of(tokenizer, documents.train)
        self.validation = held_out_rows(tokenizer, documents.held_out, rows=32, length=256)
        self.model = TinyMoe(ModelShape())
        self.model.initialise(self.schedule.seed)
        self.muon, self.adam = _optimizers(self.model)
        self.progress = Progress()
        self.log: list[dict[str, float]] = []
        state = run.work / STATE_FILE
        if state.exists():
            self._restore(torch.load(state, weights_only=True))

    def loop(self) -> None:
        """Step until the schedule is complete."""
        started, saved, already = time.monotonic(), time.monotonic(), self.progress.seconds
        begun_at = self.progress.fraction
        while self.progress.fraction < 1.0:
            figures = self._step()
            now = time.monotonic()
            self.progress.seconds = already + now - started
            spent = (now - started) / (60 * self.run.minutes)
            self.progress.fraction = self._agree(
                max(self.progress.tokens / self.schedule.tokens, begun_at + (1 - begun_at) * spent)
            )
            if self.rank == 0:
                self.log.append(figures)
                if self.progress.step % self.run.report_every_steps == 0:
                    self._report()
                if now - saved > SAVE_EVERY_SECONDS or self.progress.fraction >= 1.0:
                    self._save()
                    saved = time.monotonic()

    def _step(self) -> dict[str, float]:
        schedule, progress = self.schedule, self.progress
        batch = batch_at(self.mixture, schedule, progress.step, progress.fraction, self.rank, self.run.workers)
        logits, balance = self.model(batch.ids[:, :-1])
        losses = F.cross_entropy(logits.flatten(0, 1), batch.ids[:, 1:].flatten(), reduction="none")
        weights = batch.weights.flatten()
        loss = (losses * weights).sum() / weights.sum()
        (loss + schedule.balance_weight * balance).backward()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        for gradient, total in zip(gradients, self._summed(gradients), strict=True):
            torch.div(total, self.run.workers, out=gradient)
        rate = schedule.rate_at(progress.step, progress.fraction)
        nn.utils.clip_grad_norm_(self.adam.param_groups[0]["params"], GRADIENT_CLIP)
        for group in self.adam.param_groups:
            group["lr"] = schedule.other_learning_rate * rate
        self.adam.step()
        directions = self._summed(self.muon.directions(self.rank, self.run.workers))
        self.muon.apply(directions, schedule.matrix_learning_rate * rate, schedule.matrix_weight_decay)
        self.model.zero_grad(set_to_none=True)
        progress.step += 1
        progress.tokens += batch.weights.numel() * self.run.workers
        return _figures(batch, logits.detach(), loss.item(), balance.item())

    def _summed(self, tensors: list[Tensor]) -> list[Tensor]:
        """The sum of each tensor over all ranks."""
        flat = torch.cat([t.flatten() for t in tensors])
        dist.all_reduce(flat)
        parts = torch.split(flat, [t.numel() for t in tensors])
        return [part.view_as(t) for part, t in zip(parts, tensors, strict=True)]

    def _agree(self, fraction: float) -> float:
        shared = torch.tensor([fraction], dtype=torch.float64)
        dist.broadcast(shared, src=0)
        return float(shared)

    def _report(self) -> None:
        recent = self.log[-self.run.report_every_steps :]
        line = {
            "step": self.progress.step,
            "fraction": round(self.progress.fraction, 4),
            "tokens": self.progress.tokens,
            "seconds": round(self.progress.seconds, 1),
            "loss": round(sum(f["loss"] for f in recent) / len(recent), 4),
            "balance": round(sum(f["balance"] for f in recent) / len(recent), 3),
        }
        for length in (256, 512, 1024, 2048):
            hits = [f["recall"] for f in recent if f["length"] == length and f["recall"] >= 0]
            if hits:
                line[f"digits_right_{length}"] = round(sum(hits) / len(hits), 3)
        if self.progress.step % (VALIDATION_EVERY_REPORTS * self.run.report_every_steps) == 0:
            line["validation_perplexity"] = round(perplexity(self.model, self.validation), 2)
        with (self.run.work / "log.jsonl").open("a") as out:
            out.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)

    def _save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "adam": self.adam.state_dict(),
            "muon": self.muon.buffers,
            "progress": asdict(self.progress),
        }
        partial = self.run.work / f"{STATE_FILE}.partial"
        torch.save(state, partial)
        partial.replace(self.run.work / STATE_FILE)

    def _restore(self, state: dict[str, object]) -> None:
        self.model.load_state_dict(state["model"])  # type: ignore[arg-type]
        self.adam.load_state_dict(state["adam"])  # type: ignore[arg-type]
        self.muon.buffers = list(state["muon"])  # type: ignore[call-overload]
        self.progress = Progress(**state["progress"])  # type: ignore[arg-type]


def _optimizers(model: TinyMoe) -> tuple[Muon, torch.optim.AdamW]:
    matrices: list[tuple[nn.Parameter, int]] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if "_proj" in name:
            matrices.append((parameter, 2 if name.endswith("gate_up_proj") else 1))
        else:
            others.append(parameter)
    return Muon(matrices), torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0, fused=True)


def _figures(batch: Batch, logits: Tensor, loss: float, balance: float) -> dict[str, float]:
    answers = batch.weights == ANSWER_WEIGHT
    right = (logits.argmax(-1) == batch.ids[:, 1:])[answers]
    share = right.float().mean().item() if right.numel() else -1.0
    return {"loss": loss, "balance": balance, "length": batch.weights.shape[1], "recall": share}


def held_out_rows(tokenizer: Tokenizer, documents: tuple[corpus.Document, ...], rows: int, length: int) -> Tensor:
    """``rows`` stretches [rows, length + 1] int64 spread evenly over the documents."""
    stream = torch.tensor([i for e in tokenizer.encode_batch([d.text for d in documents]) for i in e.ids])
    starts = torch.linspace(0, len(stream) - length - 1, rows).long()
    return torch.stack([stream[s : s + length + 1] for s in starts])


@torch.no_grad()
def perplexity(model: TinyMoe, rows: Tensor) -> float:
    """exp of the mean negative log-likelihood over ``rows`` [rows, length + 1]."""
    logits, _ = model(rows[:, :-1])
    return float(F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).exp())
