"""`python -m benchmarks NAME [--quick] [--json]`: the last line is one JSON object {"name", "machine", "figures"}."""

from __future__ import annotations

import argparse
import importlib
import json
import sys

from benchmarks.machine import describe_machine

BENCHMARKS = {
    "capacity": "tokens that the KV pool holds in the same bytes, BF16 against FP8, filled to refusal",
    "kernels": "CPU kernels: INT4 experts and FP8 attention against the memory's speed and against torch",
    "gpu_kernels": "kernels on a CUDA device at decode shapes of large models, against a copy's bandwidth",
}
"""Name of a module in this package with `run(quick) -> dict` and `sheet(figures) -> str`, and what it measures."""
NEEDS_CUDA = frozenset({"gpu_kernels"})


def main() -> int:
    """Run one benchmark, or all that this machine can."""
    listing = "\n".join(f"  {name:12} {summary}" for name, summary in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"Measure.\n\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=[*sorted(BENCHMARKS), "all"], help="what to measure")
    parser.add_argument("--quick", action="store_true", help="smaller, for a smoke test")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    args = parser.parse_args()
    for name in BENCHMARKS if args.name == "all" else [args.name]:
        if name in NEEDS_CUDA and not has_cuda():
            print(
                f"benchmarks {name}: needs a CUDA device, and there is none here: nothing was measured", file=sys.stderr
            )
            if args.name == "all":
                continue
            return 1
        module = importlib.import_module(f"benchmarks.{name}")
        figures: dict[str, object] = module.run(quick=args.quick)
        if not args.json:
            print(module.sheet(figures))
        print(json.dumps({"name": name, "machine": describe_machine(), "figures": figures}))
    return 0


def has_cuda() -> bool:
    """Whether torch finds a CUDA device."""
    return importlib.import_module("torch").cuda.is_available() is True


if __name__ == "__main__":
    sys.exit(main())
