"""`python -m benchmarks NAME [--quick] [--json]`: the last line is one JSON object {"name", "machine", "figures"}.

Figures with `failed`, a list of what does not hold, end in exit code 1.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys

from benchmarks.machine import describe_machine

BENCHMARKS = {
    "capacity": "tokens that the KV pool holds in the same bytes, BF16 against FP8, filled to refusal",
    "kernels": "CPU kernels: INT4 experts and FP8 attention against the memory's speed and against torch",
    "integrity": "the KV integrity check: its cost against no check, and what it finds of planted faults",
    "concurrency": "throughput of FP8 KV against BF16 KV in the same bytes, and where the time of a step goes",
    "host_overhead": "schedule and batch preparation of 64 long requests, per step",
    "soak": "a real server at twice its capacity for ten minutes (--minutes): nothing leaks, nobody is stuck",
    "gpu_kernels": "kernels on a CUDA device at decode shapes of large models, against a copy's bandwidth",
}
"""Name of a module in this package with `run(quick) -> dict` and `sheet(figures) -> str`, and what it measures."""
NEEDS_CUDA = frozenset({"gpu_kernels"})
ONLY_BY_NAME = frozenset({"soak"})
"""Left out of `all`: it asserts, and measures nothing."""


def main() -> int:
    """Run one benchmark, or all that this machine can."""
    listing = "\n".join(f"  {name:14} {summary}" for name, summary in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"Measure.\n\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=[*sorted(BENCHMARKS), "all"], help="what to measure")
    parser.add_argument("--quick", action="store_true", help="smaller, for a smoke test")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    parser.add_argument("--minutes", type=float, help="how long the soak lasts")
    args = parser.parse_args()
    code = 0
    for name in [name for name in BENCHMARKS if name not in ONLY_BY_NAME] if args.name == "all" else [args.name]:
        if name in NEEDS_CUDA and not has_cuda():
            print(
                f"benchmarks {name}: needs a CUDA device, and there is none here: nothing was measured", file=sys.stderr
            )
            if args.name == "all":
                continue
            return 1
        module = importlib.import_module(f"benchmarks.{name}")
        options = {"minutes": args.minutes} if name == "soak" else {}
        figures: dict[str, object] = module.run(quick=args.quick, **options)
        if not args.json:
            print(module.sheet(figures))
        print(json.dumps({"name": name, "machine": describe_machine(), "figures": figures}))
        failed = figures.get("failed")
        if isinstance(failed, list):
            code = 1
            for reason in failed:
                print(f"benchmarks {name}: {reason}", file=sys.stderr)
    return code


def has_cuda() -> bool:
    """Whether torch finds a CUDA device."""
    return importlib.import_module("torch").cuda.is_available() is True


if __name__ == "__main__":
    sys.exit(main())
