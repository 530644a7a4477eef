"""Cases x architectures x versions of Triton, over worker processes and a cache of results."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo_kernels.aot import gates
from octavo_kernels.aot.cases import fingerprint
from octavo_kernels.aot.results import Measured, Outcome, Result
from octavo_kernels.aot.versions import TritonVersion
from octavo_kernels.triton.aot_case import AotCase, Architecture, assuming_triton

COMPILE_SECONDS = 120
"""Of one case: past it the compiler hangs, and that is the result."""
START_SECONDS = 120
"""Of a worker: importing torch and Triton."""


@dataclass(frozen=True)
class Task:
    """One compilation to be had."""

    case: AotCase
    architecture: Architecture
    triton: TritonVersion


_Compiler = tuple[TritonVersion, Architecture]
"""What one process compiles with and for."""

_Answer = tuple[Task, Measured, bool] | BaseException | None
"""What a thread hands over: a result and whether it may be cached; what ended it early; None as its last word."""


class WorkerBroken(RuntimeError):
    """A worker died or did not answer; the message says what it left on standard error."""


def tasks_and_refusals(
    cases: Mapping[str, AotCase], architectures: Sequence[Architecture], versions: Sequence[TritonVersion]
) -> tuple[list[Task], list[Result]]:
    """What to compile, and the cells that need no compiler because the case says why it would not run there."""
    tasks: list[Task] = []
    refused: list[Result] = []
    for version in versions:
        for case in cases.values():
            for architecture in (each for each in architectures if each in case.architectures):
                with assuming_triton(version.version):
                    why_not = case.why_not(architecture)
                if why_not is None:
                    tasks.append(Task(case, architecture, version))
                else:
                    refused.append(Result(case.name, architecture, version.version, Outcome.REFUSED, why_not=why_not))
    return tasks, refused


def run(
    tasks: Iterable[Task],
    *,
    modules: Sequence[str],
    cache: Path,
    workers: int,
    done: Callable[[Result], None],
) -> None:
    """Take every result from the cache or from a compiler, and tell `done` of each as it comes, from one thread.

    Args:
        modules: where workers find the cases.
        cache: folder of results by fingerprint; may be absent.
        workers: processes at a time. Each compiles for one architecture: Triton 3.6 decides how FP8 is converted when
            a process first needs it, and code chosen for 9.0 does not assemble for 8.9.
    """
    cache.mkdir(parents=True, exist_ok=True)
    missing: dict[_Compiler, list[Task]] = {}
    for task in tasks:
        known = _cached(cache, task)
        if known is None:
            missing.setdefault((task.triton, task.architecture), []).append(task)
        else:
            done(_judge(task, known, cached=True))
    answers: queue.Queue[_Answer] = queue.Queue()
    threads: list[threading.Thread] = []
    with tempfile.TemporaryDirectory(prefix="octavo-aot-") as scratch:
        work = [(compiler, _queue_of(waiting)) for compiler, waiting in missing.items()]
        threads_wanted = min(workers, sum(map(len, missing.values())))
        for number in range(threads_wanted):
            first = number * len(work) // threads_wanted
            own = (work[first:] + work[:first], modules, Path(scratch), answers)
            threads.append(threading.Thread(target=_serve, args=own, daemon=True))
        for thread in threads:
            thread.start()
        ended = 0
        while ended < len(threads):
            answer = answers.get()
            if answer is None:
                ended += 1
            elif isinstance(answer, BaseException):
                raise answer
            else:
                task, measured, lasting = answer
                if lasting:
                    _remember(cache, task, measured)
                done(_judge(task, measured, cached=False))


def _judge(task: Task, measured: Measured, *, cached: bool) -> Result:
    found = gates.problems(task.case, task.architecture, measured)
    outcome = Outcome.FAILED if found else Outcome.COMPILED
    return Result(
        task.case.name, task.architecture, task.triton.version, outcome, found, measured=measured, cached=cached
    )


def _entry(cache: Path, task: Task) -> Path:
    return cache / f"{fingerprint(task.case, task.architecture, task.triton.version)}.json"


def _cached(cache: Path, task: Task) -> Measured | None:
    try:
        return Measured.from_json(json.loads(_entry(cache, task).read_text()))
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def _remember(cache: Path, task: Task, measured: Measured) -> None:
    entry = _entry(cache, task)
    partial = entry.with_suffix(".tmp")
    partial.write_text(json.dumps(measured.as_json()))
    partial.replace(entry)


def _queue_of(tasks: Iterable[Task]) -> queue.SimpleQueue[Task]:
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    return waiting


def _serve(
    work: Iterable[tuple[_Compiler, queue.SimpleQueue[Task]]],
    modules: Sequence[str],
    scratch: Path,
    answers: queue.Queue[_Answer],
) -> None:
    """One compiler's tasks after another's, until other threads and this one have done them all."""
    try:
        for (version, _), todo in work:
            _serve_one(version, modules, scratch, todo, answers)
    except BaseException as error:  # whatever it is belongs to the thread that waits for the answers
        answers.put(error)
    finally:
        answers.put(None)


def _serve_one(
    version: TritonVersion,
    modules: Sequence[str],
    scratch: Path,
    todo: queue.SimpleQueue[Task],
    answers: queue.Queue[_Answer],
) -> None:
    worker: _Worker | None = None
    try:
        while True:
            try:
                task = todo.get_nowait()
            except queue.Empty:
                return
            if worker is None:
                worker = _Worker(version, modules, scratch)
            try:
                answers.put((task, worker.compile(task), True))
            except WorkerBroken as error:
                # The compiler took the process with it: that is this case's result, and the next gets a new process.
                # It may have been the machine's fault, so nobody remembers it.
                answers.put((task, Measured(error=str(error)), False))
                worker.stop()
                worker = None
    finally:
        if worker is not None:
            worker.stop()


class _Worker:
    """A process of `octavo_kernels.aot.worker`; used by one thread."""

    def __init__(self, version: TritonVersion, modules: Sequence[str], scratch: Path) -> None:
        self._errors = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "octavo_kernels.aot.worker", *modules],
            env=version.environment(scratch),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        greeting = self._read(START_SECONDS)
        if greeting["triton"] != version.version:
            self.stop()
            raise WorkerBroken(f"a worker for Triton {version.version} got {greeting['triton']}")

    def compile(self, task: Task) -> Measured:
        """Ask for one case; raises WorkerBroken."""
        assert self._process.stdin
        try:
            print(
                json.dumps({"case": task.case.name, "architecture": task.architecture}),
                file=self._process.stdin,
                flush=True,
            )
        except BrokenPipeError as error:
            raise WorkerBroken(self._last_words()) from error
        return Measured.from_json(self._read(COMPILE_SECONDS))

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _read(self, seconds: float) -> dict[str, object]:
        assert self._process.stdout
        overdue = threading.Timer(seconds, self._process.kill)
        overdue.start()
        try:
            line = self._process.stdout.readline()
        finally:
            overdue.cancel()
        if not line:
            raise WorkerBroken(self._last_words())
        answer: dict[str, object] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        code = self._process.wait(timeout=30)
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"the compiler's process ended with {code}: {' | '.join(said[-6:])}"[:1500]
