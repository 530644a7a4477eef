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
}
"""Name of a module in this package with `run(quick) -> dict` and `sheet(figures) -> str`, and what it measures."""


def main() -> int:
    """Run one benchmark."""
    listing = "\n".join(f"  {name:12} {summary}" for name, summary in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"Measure.\n\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=sorted(BENCHMARKS), help="what to measure")
    parser.add_argument("--quick", action="store_true", help="smaller, for a smoke test")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    args = parser.parse_args()
    module = importlib.import_module(f"benchmarks.{args.name}")
    figures: dict[str, object] = module.run(quick=args.quick)
    if not args.json:
        print(module.sheet(figures))
    print(json.dumps({"name": args.name, "machine": describe_machine(), "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
