"""`python -m octavo_kernels.cpu.build [--into FOLDER]`: compile `src/*.c`, once per instruction set.

Wheel and image carry the result beside this file. Where it is absent, as in an editable install, `library` builds the
one variant that it needs into the user's cache; the file name holds a hash of everything that went in, so that a
stale one is never loaded.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
PREBUILT = Path(__file__).parent / "prebuilt"
COMPILE_SECONDS = 300
WARNINGS = ("-Wall", "-Wextra", "-Werror")
FLAGS = (
    *("-std=gnu11", "-O3", "-fopenmp", "-fPIC", "-shared", "-ffp-contract=fast", "-fno-math-errno"),
    *WARNINGS,
)
"""Not -ffast-math: it would drop the NaN and infinity that results must show, and its start-up code changes how every
thread of the process treats tiny numbers."""


class BuildError(RuntimeError):
    """The C sources could not be compiled: no compiler, or what it said."""


@dataclass(frozen=True)
class Variant:
    """One instruction set that the sources are compiled for."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]
    """Names of CPU features in /proc/cpuinfo without which the library must not be loaded."""


_AVX2 = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_V4 = ("-march=x86-64-v4", "-mavx512vnni")
_X86 = (
    Variant("avx512_bf16", (*_V4, "-mavx512bf16"), _AVX512 | {"avx512_vnni", "avx512_bf16"}),
    Variant("avx512_vnni", _V4, _AVX512 | {"avx512_vnni"}),
    Variant("avx2", ("-march=x86-64-v3",), _AVX2),
)
PORTABLE = Variant("portable", (), frozenset())


def variants(machine: str = platform.machine()) -> tuple[Variant, ...]:
    """Those for an architecture, best first; the portable one is always the last."""
    return (*_X86, PORTABLE) if machine == "x86_64" else (PORTABLE,)


def digest(variant: Variant) -> str:
    """Hash of sources and flags."""
    state = hashlib.sha256(repr((variant.name, variant.flags, FLAGS, platform.machine())).encode())
    for path in sorted(SOURCES.iterdir()):
        state.update(path.name.encode() + b"\0" + path.read_bytes())
    return state.hexdigest()[:16]


def file_name(variant: Variant) -> str:
    """Name of a variant's library."""
    return f"liboctavo-{variant.name}-{digest(variant)}.so"


def cache_folder() -> Path:
    """Where libraries are built when none is prebuilt: $OCTAVO_CACHE or $XDG_CACHE_HOME/octavo, then `kernels`."""
    if explicit := os.environ.get("OCTAVO_CACHE"):
        return Path(explicit) / "kernels"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo" / "kernels"


def is_whole(path: Path) -> bool:
    """Whether a library is there to its last byte: the linker puts the table of sections at the end (ELF-64 header,
    System V ABI). Loading the front part of one can kill the process."""
    try:
        with path.open("rb") as file:
            header = file.read(64)
        size = path.stat().st_size
    except OSError:
        return False
    if len(header) < 64 or header[:5] != b"\x7fELF\x02":
        return False
    order = "<" if header[5] == 1 else ">"
    (table,) = struct.unpack_from(f"{order}Q", header, 40)
    entry_bytes, entries = struct.unpack_from(f"{order}HH", header, 58)
    return bool(0 < table + entry_bytes * entries <= size)


def compile_variant(variant: Variant, folder: Path) -> Path:
    """The variant's library in `folder`, compiled unless it is there; safe beside others who do the same.

    Raises:
        BuildError: no C compiler, it failed, or the folder cannot be written.
    """
    target = folder / file_name(variant)
    if is_whole(target):
        return target
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        raise BuildError("the CPU kernels are not prebuilt and there is no C compiler: install gcc, or set CC")
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".tmp", delete=False) as scratch:
            argv = [compiler, *FLAGS, *variant.flags, *sources, "-o", scratch.name, "-lm"]
            try:
                done = subprocess.run(argv, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
                if done.returncode:
                    raise BuildError(f"{compiler} failed on the {variant.name} kernels: {done.stderr.strip()[-2000:]}")
                Path(scratch.name).chmod(0o755)
                Path(scratch.name).replace(target)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    Path(scratch.name).unlink()
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{compiler} took more than {COMPILE_SECONDS} s on the {variant.name} kernels") from error
    except OSError as error:
        raise BuildError(f"the CPU kernels cannot be built into {folder}: {error}") from error
    return target


def main(argv: Sequence[str] | None = None) -> int:
    """Compile every variant; 1 with the compiler's words when one fails."""
    parser = argparse.ArgumentParser(prog="python -m octavo_kernels.cpu.build", description=__doc__)
    parser.add_argument("--into", type=Path, default=PREBUILT, help="folder for the libraries (default: the package)")
    args = parser.parse_args(argv)
    try:
        for variant in variants():
            print(compile_variant(variant, args.into))
    except BuildError as error:
        print(f"octavo_kernels.cpu.build: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
