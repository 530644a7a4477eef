"""A result is taken from the cache exactly when nothing that it was compiled from has changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from octavo_kernels.aot.cases import fingerprint, kernel_modules, load_cases, sources_of
from octavo_kernels.aot.matrix import tasks_and_refusals
from octavo_kernels.aot.versions import TritonVersion
from octavo_kernels.triton.aot_case import ARCHITECTURES, DISTINCT, AotCase


@dataclass(frozen=True)
class Compiled:
    """What `triton.jit` leaves in the place of a function, as far as hashes go."""

    fn: Callable[..., object]
    arg_names: tuple[str, ...] = ()


def _helper(x: int) -> int:
    return x + FACTOR


FACTOR = 3
helper = Compiled(_helper)


def _kernel(x: int) -> object:
    return helper.fn(x)


CASE = AotCase("case", Compiled(_kernel), {"x": "i32"}, {"BLOCK": 16})


def test_a_kernel_s_sources_are_its_own_its_helpers_and_the_globals_they_read() -> None:
    sources = sources_of(CASE.kernel)
    assert set(sources) == {f"{__name__}._kernel", f"{__name__}._helper", f"{__name__}.FACTOR"}
    assert "return x + FACTOR" in sources[f"{__name__}._helper"]


def test_the_same_case_has_the_same_hash_under_any_name() -> None:
    renamed = dataclasses.replace(CASE, name="other", max_registers=1)
    assert fingerprint(renamed, 90, "3.9.0") == fingerprint(CASE, 90, "3.9.0")


@pytest.mark.parametrize(
    "change",
    [
        {"signature": {"x": "i64"}},
        {"constants": {"BLOCK": 32}},
        {"num_warps": 8},
        {"num_stages": 1},
        {"unaligned": frozenset({"x"})},
        {"kernel": helper},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_question_has_another_hash(change: dict[str, object]) -> None:
    other = dataclasses.replace(CASE, **change)  # type: ignore[arg-type]
    assert fingerprint(other, 90, "3.9.0") != fingerprint(CASE, 90, "3.9.0")


def test_another_architecture_or_triton_has_another_hash() -> None:
    assert len({fingerprint(CASE, *asked) for asked in ((90, "3.9.0"), (100, "3.9.0"), (90, "3.6.0"))}) == 3


def test_a_global_that_a_helper_reads_changes_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(CASE, 90, "3.9.0")
    monkeypatch.setitem(_helper.__globals__, "FACTOR", 4)
    assert fingerprint(CASE, 90, "3.9.0") != before


def test_two_cases_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "AOT_CASES", (CASE, dataclasses.replace(CASE)))
    with pytest.raises(ValueError, match="two ahead-of-time cases are called case"):
        load_cases([__name__])


@pytest.mark.slow
def test_every_kernel_is_asked_for_on_every_architecture() -> None:
    """Further sizes of a kernel may be compiled on fewer."""
    asked: dict[str, set[int]] = {}
    for case in load_cases(kernel_modules()).values():
        asked.setdefault(str(getattr(case.kernel, "__name__", case.kernel)), set()).update(case.architectures)
    assert len(asked) > 20
    assert {name: sorted(where) for name, where in asked.items() if where != set(ARCHITECTURES)} == {}


def test_a_further_size_is_compiled_only_where_compilers_differ() -> None:
    further = dataclasses.replace(CASE, name="further", architectures=DISTINCT)
    version = TritonVersion("3.9.0", None)
    tasks, refused = tasks_and_refusals({"case": CASE, "further": further}, (90, 103), [version])
    assert [(task.case.name, task.architecture) for task in tasks] == [("case", 90), ("case", 103), ("further", 90)]
    assert not refused
