"""Compiling and finding the CPU kernels: what can go wrong on a machine, and what is said then."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from octavo_kernels.cpu import build, library
from octavo_kernels.cpu.build import PORTABLE, BuildError, Variant, compile_variant, file_name, is_whole
from tests.kernels.cpu.variants import RUNNABLE, forget_loaded

ROOT = Path(build.__file__).parents[3]


@pytest.fixture
def tiny_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """One C function in place of all, so that a compiler is done in a moment."""
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "answer.c").write_text(
        "#include <stdint.h>\n"
        "void answer(int64_t *out, float scale, int64_t threads) { *out = (int64_t)(scale * 10) + threads; }\n"
    )
    monkeypatch.setattr(build, "SOURCES", folder)
    monkeypatch.setattr(library, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(library.FORCE, raising=False)
    forget_loaded()
    yield folder
    forget_loaded()


def test_the_best_runnable_variant_is_built_into_the_cache_and_called(tiny_sources: Path, tmp_path: Path) -> None:
    loaded = library.load()
    assert loaded.variant.name == RUNNABLE[0]
    assert loaded.path.parent == tmp_path / "cache" / "kernels"
    out = torch.zeros(1, dtype=torch.int64)
    loaded.call("answer", out, 4.0)
    assert int(out) == 40 + torch.get_num_threads()


def test_a_prebuilt_library_needs_no_compiler(
    tiny_sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert build.main(["--into", str(tmp_path / "prebuilt")]) == 0
    monkeypatch.setenv("PATH", "")
    assert library.load().path.parent == tmp_path / "prebuilt"


def test_without_a_compiler_the_reason_is_said(tiny_sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert library.why_unavailable() == (
        "the CPU kernels are not prebuilt and there is no C compiler: install gcc, or set CC"
    )


def test_what_the_compiler_says_is_passed_on(
    tiny_sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tiny_sources / "broken.c").write_text("this is no C\n")
    assert build.main(["--into", str(tmp_path / "prebuilt")]) == 1
    assert "broken.c" in capsys.readouterr().err
    assert list((tmp_path / "prebuilt").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tiny_sources: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    reason = library.why_unavailable()
    assert reason is not None
    assert f"cannot be built into {tmp_path / 'cache' / 'kernels'}" in reason


def test_a_truncated_library_is_built_anew(tiny_sources: Path, tmp_path: Path) -> None:
    path = compile_variant(PORTABLE, tmp_path)
    whole = path.stat().st_size
    os.truncate(path, whole // 2)
    assert not is_whole(path)
    assert compile_variant(PORTABLE, tmp_path) == path
    assert is_whole(path)
    os.truncate(path, 10)
    assert not is_whole(path)


def test_a_truncated_prebuilt_library_is_passed_over(tiny_sources: Path, tmp_path: Path) -> None:
    best = next(variant for variant in build.variants() if variant.name == RUNNABLE[0])
    path = compile_variant(best, tmp_path / "prebuilt")
    os.truncate(path, path.stat().st_size // 2)
    assert library.load().path.parent == tmp_path / "cache" / "kernels"


def test_two_at_once_get_the_same_library(tiny_sources: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: compile_variant(PORTABLE, tmp_path / "out"), range(2))
    assert first == second
    assert [path.name for path in (tmp_path / "out").iterdir()] == [file_name(PORTABLE)]
    assert is_whole(first)


def test_changed_sources_get_another_name(tiny_sources: Path) -> None:
    before = file_name(PORTABLE)
    (tiny_sources / "answer.c").write_text("void answer(void) {}\n")
    assert file_name(PORTABLE) != before


def test_an_unknown_variant_is_refused_with_those_that_there_are(
    tiny_sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(library.FORCE, "sse9")
    with pytest.raises(BuildError, match=r"there are no 'sse9' kernels for this CPU .* it can run .*portable"):
        library.load()


def test_a_cpu_gets_only_what_it_can_run() -> None:
    assert [variant.name for variant in library.usable(frozenset())] == ["portable"]
    if len(build.variants()) > 1:
        flags = next(variant.needs for variant in build.variants() if variant.name == "avx2")
        assert [variant.name for variant in library.usable(flags)] == ["avx2", "portable"]


def test_building_needs_no_torch() -> None:
    code = "import sys, octavo_kernels.cpu.build; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("variant", build.variants(), ids=lambda variant: variant.name)
def test_every_variant_compiles_without_a_warning(variant: Variant, tmp_path: Path) -> None:
    assert is_whole(compile_variant(variant, tmp_path))


@pytest.mark.slow
def test_a_wheel_carries_every_variant_and_says_for_which_platform(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "uv", "build", "--wheel", "--out-dir", str(tmp_path), str(ROOT)]
    subprocess.run(argv, timeout=280, check=True, capture_output=True)
    wheel = next(path for path in tmp_path.iterdir() if path.suffix == ".whl")
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    assert "-py3-none-" in wheel.name
    assert "any" not in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for variant in build.variants():
        assert f"octavo_kernels/cpu/prebuilt/{file_name(variant)}" in names
