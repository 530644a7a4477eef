"""`python -m octavo_kernels.explain [--device cpu|sm_90] [--weights INT4] [--kv FP8]`: which kernel runs, and why."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence

from octavo_kernels.catalogue import REGISTRY
from octavo_kernels.device import Device, DeviceError
from octavo_kernels.registry import Choice, Formats, NoImplementation, Registry

LINE_WIDTH = 118
UNKNOWN_ARGUMENT = 2
NOTHING_RUNS = 1


def table(device: Device, formats: Formats, registry: Registry = REGISTRY) -> str:
    """What runs for each operation and why; then what was passed over, each reason once. Raises NoImplementation."""
    choices = [registry.select(operation, device, formats) for operation in registry.operations]
    operation_width = max(len(choice.operation) for choice in choices)
    name_width = max(len(choice.implementation) for choice in choices)
    lines = [f"{device}, {formats.weights} experts, {formats.kv} KV cache", ""]
    for choice in choices:
        name = f"{choice.implementation:<{name_width}}"
        lines += _wrapped(f"{choice.operation:<{operation_width}}  {name}  ", choice.reason)
    return "\n".join([*lines, "", "Passed over", *_passed_over(choices)])


def _passed_over(choices: Sequence[Choice]) -> list[str]:
    """One entry for all operations that an implementation is passed over in for the same reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for choice in choices:
        for rejected in choice.rejected:
            why_not = "would be next" if rejected.could_run else rejected.why_not
            found.setdefault((rejected.name, why_not), []).append(choice.operation)
    width = max((len(name) for name, _ in found), default=0)
    lines = []
    for (name, why_not), operations in found.items():
        where = "everywhere" if len(operations) == len(choices) else ", ".join(operations)
        lines += _wrapped(f"  {name:<{width}}  ", f"{why_not} ({where})")
    return lines


def _wrapped(start: str, text: str) -> list[str]:
    return textwrap.wrap(text, LINE_WIDTH, initial_indent=start, subsequent_indent=" " * len(start))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 when an operation has no implementation there, 2 for a device that is not understood."""
    parser = argparse.ArgumentParser(prog="python -m octavo_kernels.explain", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu (this machine), or sm_90 and the like")
    parser.add_argument("--weights", default="INT4", type=str.upper, help="format of the routed experts")
    parser.add_argument("--kv", default="FP8", type=str.upper, help="format of the KV cache")
    args = parser.parse_args(argv)
    try:
        print(table(Device.parse(args.device), Formats(weights=args.weights, kv=args.kv)))
    except DeviceError as error:
        print(f"octavo_kernels.explain: {error}", file=sys.stderr)
        return UNKNOWN_ARGUMENT
    except NoImplementation as error:
        print(f"octavo_kernels.explain: {error}", file=sys.stderr)
        return NOTHING_RUNS
    return 0


if __name__ == "__main__":
    sys.exit(main())
