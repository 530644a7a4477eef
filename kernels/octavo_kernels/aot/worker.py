"""A process that compiles cases for another: a line of JSON in, a line of JSON out, until its input ends.

Input `{"case": name, "architecture": 90}`; output the Measured. The first line out says which Triton this is. What
Triton or a module prints goes to standard error, so that nothing comes between the lines.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m octavo_kernels.aot.worker", description=__doc__)
    parser.add_argument("modules", nargs="+", help="modules whose AOT_CASES may be asked for")
    args = parser.parse_args(argv)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    import triton

    from octavo_kernels.aot.cases import load_cases
    from octavo_kernels.aot.compile import compile_case

    cases = load_cases(args.modules)
    print(json.dumps({"triton": triton.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        measured = compile_case(cases[task["case"]], task["architecture"])
        print(json.dumps(measured.as_json()), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
