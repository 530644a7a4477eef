"""`octavo serve PATH`: flags become settings here, and nowhere deeper is a flag or the environment read."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

import uvloop
from prometheus_client import disable_created_metrics

from octavo_runtime.cli.main import leave_last_word
from octavo_runtime.contract.container import DRAIN_ANNOUNCE_SECONDS, HTTP_PORT
from octavo_runtime.contract.facts import ModelFacts
from octavo_runtime.contract.footprint import DEFAULT_PAGE_SIZE
from octavo_runtime.contract.integrity import IntegrityMode
from octavo_runtime.contract.launch import MAX_NUM_BATCHED_TOKENS
from octavo_runtime.contract.precision import ComputeCapability, KvFormat, KvScaling, WeightFormat
from octavo_runtime.contract.refused import Refused
from octavo_runtime.contract.termination import ExitCode, report_of
from octavo_runtime.engine.fault_kinds import DEFAULT_RATE, FaultKind, FaultPlan
from octavo_runtime.engine.logs import LogFormat, configure_logs, logger
from octavo_runtime.engine.messages import Failed, Started
from octavo_runtime.engine.process import EngineProgram, Report
from octavo_runtime.engine.result import Steps
from octavo_runtime.engine.settings import EngineSettings
from octavo_runtime.loading.facts import read_facts
from octavo_runtime.server.run import Server, bind, codec_loader
from octavo_runtime.server.settings import ServeSettings

AUTO = "auto"
EnumT = TypeVar("EnumT", bound=StrEnum)
_SCALINGS = {"per-tensor": KvScaling.PER_TENSOR, "per-token-head": KvScaling.PER_TOKEN_HEAD}
_DEFAULTS = ServeSettings(served_model="", vocab_size=0, max_num_seqs=0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `contract.launch.LaunchFlags`, and those for use by hand."""
    parser.add_argument("model", type=Path, metavar="PATH", help="directory of the checkpoint")
    parser.add_argument("--served-model-name", metavar="NAME", help="name in requests (default: the directory's)")
    _add_engine_arguments(parser.add_argument_group("engine"))
    _add_server_arguments(parser.add_argument_group("server"))


def _add_engine_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--weights", choices=_choices(WeightFormat), default=AUTO, help="format of routed experts")
    group.add_argument("--kv-cache-dtype", choices=_choices(KvFormat), default=AUTO, help="format of keys and values")
    group.add_argument("--max-model-len", type=_positive, metavar="TOKENS", help="prompt and answer of one request")
    group.add_argument("--max-num-seqs", type=_positive, default=32, metavar="N", help="requests that run at once (32)")
    group.add_argument(
        "--max-num-batched-tokens",
        type=_positive,
        default=MAX_NUM_BATCHED_TOKENS,
        metavar="TOKENS",
        help=f"new tokens per step ({MAX_NUM_BATCHED_TOKENS})",
    )
    group.add_argument(
        "--kv-scale",
        choices=_SCALINGS,
        default="per-tensor",
        help="scales of an FP8 cache: one per layer, or one per token and head, which takes more memory (per-tensor)",
    )
    group.add_argument(
        "--no-prefix-cache",
        dest="prefix_cache",
        action="store_false",
        help="free a request's pages at its end instead of keeping them for prompts that begin the same",
    )
    group.add_argument(
        "--kv-cache-memory-bytes", type=_positive, metavar="BYTES", help="KV pool (default: from free memory)"
    )
    group.add_argument(
        "--page-size", type=_page_size, default=DEFAULT_PAGE_SIZE, metavar="TOKENS", help="16 to 128 (64)"
    )
    group.add_argument("--tensor-parallel-size", type=_positive, default=1, metavar="N", help="ranks (1)")
    group.add_argument(
        "--expect-compute-capability",
        type=_capability,
        metavar="X.Y",
        help="end before loading when the device is another one",
    )
    group.add_argument(
        "--expect-memory-mib", type=_positive, metavar="MIB", help="end before loading when the memory is another"
    )
    group.add_argument(
        "--kv-integrity",
        choices=[mode.value for mode in IntegrityMode],
        default=IntegrityMode.ENFORCE.value,
        help="enforce: a violation ends its request; report: it is counted; off: nothing is checked",
    )
    group.add_argument(
        "--inject-fault",
        type=_fault,
        action="append",
        default=[],
        metavar="KIND[:RATE]",
        help=f"make the KV cache wrong on purpose, in this share of steps ({DEFAULT_RATE:g}); may be repeated. "
        f"Kinds: {', '.join(FaultKind)}",
    )
    group.add_argument("--allow-fault-injection", action="store_true", help="without it --inject-fault is refused")
    group.add_argument(
        "--allow-reference", action="store_true", help="run the specification where no fast kernel can, slowly"
    )
    group.add_argument(
        "--cuda-graphs", action="store_true", help="capture decode steps as CUDA graphs (not yet tried on a device)"
    )


def _add_server_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", default=_DEFAULTS.host, help=f"address to listen on ({_DEFAULTS.host})")
    group.add_argument("--port", type=_port, default=HTTP_PORT, help=f"port to listen on ({HTTP_PORT})")
    group.add_argument(
        "--drain-seconds", type=_seconds, default=_DEFAULTS.drain_seconds, metavar="S", help="wait for requests (120)"
    )
    group.add_argument(
        "--drain-announce-seconds",
        type=_seconds,
        default=float(DRAIN_ANNOUNCE_SECONDS),
        metavar="S",
        help=f"still serve new connections this long when a drain begins ({DRAIN_ANNOUNCE_SECONDS})",
    )
    group.add_argument(
        "--stall-seconds",
        type=_seconds,
        default=_DEFAULTS.stall_seconds,
        metavar="S",
        help=f"a silent engine fails its requests and ends the server after so long ({_DEFAULTS.stall_seconds:.0f})",
    )
    group.add_argument(
        "--max-queued-requests", type=_count, default=_DEFAULTS.max_queued_requests, metavar="N", help="may wait (256)"
    )
    group.add_argument("--max-queued-tokens", type=_positive, metavar="TOKENS", help="may wait (twice the KV pool)")
    group.add_argument(
        "--max-request-bytes", type=_positive, metavar="BYTES", help="body limit (from --max-model-len, 1 MiB or more)"
    )
    group.add_argument(
        "--unready-after-violations",
        type=_positive,
        metavar="N",
        help="fail readiness after so many integrity violations (off: under the operator, it decides)",
    )
    group.add_argument(
        "--log-format", choices=[style.value for style in LogFormat], default=LogFormat.LOGFMT.value, help="of logs"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until a signal (0), or until the engine ends (1). Raises Refused."""
    signal.signal(signal.SIGTERM, _exit_at_once)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    prepare_environment(os.environ)
    log_format = LogFormat(args.log_format)
    configure_logs(log_format)
    facts = read_facts(args.model)
    settings = engine_settings(args, facts)
    settings.check()
    sock = bind(args.host, args.port)
    program = EngineProgram(_start_engine, settings, log_format)
    server = Server(serve_settings(args, facts), program, codec_loader(args.model))
    logger("server").info("loading", extra={"model": str(args.model), "host": args.host, "port": args.port})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ended = runner.run(server.run(sock))
    code = ExitCode.OK if ended is None else engine_ended(ended)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # nothing is left to save; unloading the tokenizer's library takes longer than all that is above


def _exit_at_once(_number: int, _frame: FrameType | None) -> NoReturn:
    """Until the event loop takes signals over: as process 1 of a container, SIGTERM would otherwise be ignored."""
    raise SystemExit(ExitCode.OK)


def _start_engine(settings: EngineSettings, report: Report) -> tuple[Steps, Started]:
    """In the engine's process: only there is torch imported."""
    from octavo_runtime.engine.startup import start_engine

    return start_engine(settings, report)


def engine_ended(failed: Failed) -> int:
    """The exit code of a server whose engine ended; raises Refused where the engine refused its settings."""
    refused = Refused(failed.reason, failed.message, retryable=failed.retryable)
    if failed.refused:
        raise refused
    logger("server").error("engine ended", extra={"reason": failed.reason, "detail": failed.message})
    leave_last_word(report_of(refused))
    return ExitCode.FAILED


def prepare_environment(environment: dict[str, str] | os._Environ[str]) -> None:
    """Serve from the checkpoint alone, and write nowhere but in the cache directory when the rest is read-only."""
    environment.setdefault("HF_HUB_OFFLINE", "1")
    environment.setdefault("TOKENIZERS_PARALLELISM", "false")
    cache = environment.get("XDG_CACHE_HOME")
    if cache is None:
        return
    environment.setdefault("HF_HOME", f"{cache}/huggingface")
    environment.setdefault("TRITON_CACHE_DIR", f"{cache}/triton")
    try:
        tempfile.gettempdir()
    except FileNotFoundError:  # neither /tmp nor the working directory can be written
        directory = Path(cache) / "tmp"
        directory.mkdir(parents=True, exist_ok=True)
        environment["TMPDIR"] = str(directory)


def engine_settings(args: argparse.Namespace, facts: ModelFacts) -> EngineSettings:
    """The engine's part of the flags."""
    return EngineSettings(
        model=args.model,
        facts=facts,
        weights=_chosen(WeightFormat, args.weights),
        kv_cache=_chosen(KvFormat, args.kv_cache_dtype),
        max_model_len=args.max_model_len,
        max_num_seqs=args.max_num_seqs,
        tokens_per_step=args.max_num_batched_tokens,
        kv_cache_memory_bytes=args.kv_cache_memory_bytes,
        page_size=args.page_size,
        tensor_parallel_size=args.tensor_parallel_size,
        expect_compute_capability=args.expect_compute_capability,
        expect_memory_mib=args.expect_memory_mib,
        integrity=IntegrityMode(args.kv_integrity),
        kv_scaling=_scaling(args),
        prefix_cache=args.prefix_cache,
        faults=_faults(args),
        allow_reference=args.allow_reference,
        cuda_graphs=args.cuda_graphs,
    )


def serve_settings(args: argparse.Namespace, facts: ModelFacts) -> ServeSettings:
    """The HTTP side's part of the flags."""
    return ServeSettings(
        served_model=args.served_model_name or args.model.resolve().name,
        vocab_size=facts.vocab_size,
        max_num_seqs=args.max_num_seqs,
        host=args.host,
        port=args.port,
        drain_seconds=args.drain_seconds,
        announce_seconds=args.drain_announce_seconds,
        stall_seconds=args.stall_seconds,
        max_queued_requests=args.max_queued_requests,
        max_queued_tokens=args.max_queued_tokens,
        max_body_bytes=args.max_request_bytes,
        unready_after_violations=args.unready_after_violations,
    )


def _scaling(args: argparse.Namespace) -> KvScaling:
    scaling = _SCALINGS[args.kv_scale]
    if scaling is not KvScaling.PER_TENSOR and _chosen(KvFormat, args.kv_cache_dtype) is KvFormat.BF16:
        raise Refused(
            "KvScaleWithoutFp8",
            f"--kv-scale {args.kv_scale}: a BF16 cache has no scales; use --kv-cache-dtype fp8 or auto",
        )
    return scaling


def _faults(args: argparse.Namespace) -> tuple[FaultPlan, ...]:
    plans: list[FaultPlan] = args.inject_fault
    if plans and not args.allow_fault_injection:
        raise Refused(
            "FaultInjectionNotAllowed",
            f"--inject-fault {plans[0].kind} makes the KV cache wrong on purpose and ends requests of users; "
            f"where that is meant, give --allow-fault-injection too",
        )
    kinds = [plan.kind for plan in plans]
    twice = next((kind for kind in kinds if kinds.count(kind) > 1), None)
    if twice is not None:
        raise Refused("FaultGivenTwice", f"--inject-fault {twice} is given more than once; give it one rate")
    return tuple(plans)


def _choices(formats: type[StrEnum]) -> list[str]:
    return [AUTO, *(one.value.lower() for one in formats)]


def _chosen(formats: type[EnumT], value: str) -> EnumT | None:
    return None if value == AUTO else formats(value.upper())


def _positive(text: str) -> int:
    return _whole_number(text, at_least=1)


def _count(text: str) -> int:
    return _whole_number(text, at_least=0)


def _whole_number(text: str, *, at_least: int) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < at_least:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least {at_least}, got {text!r}")
    return int(text)


def _page_size(text: str) -> int:
    size = _positive(text)
    if not 16 <= size <= 128:
        raise argparse.ArgumentTypeError(f"must be 16 to 128 tokens, got {text!r}")
    return size


def _fault(text: str) -> FaultPlan:
    name, colon, rate = text.partition(":")
    if name not in set(FaultKind):
        raise argparse.ArgumentTypeError(f"there is no fault kind {name!r}; there are: {', '.join(FaultKind)}")
    if not colon:
        return FaultPlan(FaultKind(name))
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,9})?", rate) or not 0 < float(rate) <= 1:
        raise argparse.ArgumentTypeError(f"the rate of {name} must be above 0 and at most 1, got {rate!r}")
    return FaultPlan(FaultKind(name), float(rate))


def _port(text: str) -> int:
    port = _positive(text)
    if port > 65535:
        raise argparse.ArgumentTypeError(f"must be 1 to 65535, got {text!r}")
    return port


def _seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?", text):
        raise argparse.ArgumentTypeError(f"must be seconds, such as 5 or 0.5, got {text!r}")
    return float(text)


def _capability(text: str) -> ComputeCapability:
    try:
        return ComputeCapability.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
