"""The contract and the operator start without torch: the operator image does not contain it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "triton", "transformers", "numpy", "tokenizers", "safetensors", "huggingface_hub")

PROGRAM = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(" ".join(name for name in sys.argv[2:] if name in sys.modules))
"""


@pytest.mark.parametrize("package", ["octavo_runtime.contract", "octavo_operator"])
def test_no_module_of_it_imports_torch_or_its_like(package: str) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, package, *HEAVY],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == ""
