import io
from pathlib import Path

import pytest

from e2e.cluster.progress import Durations, Progress, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0s"), (9.96, "10s"), (59.7, "1m00s"), (185, "3m05s"), (3725, "1h02m")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_what_a_step_took_is_shown_the_next_time(tmp_path: Path) -> None:
    durations = Durations(tmp_path / "durations.json")
    durations.record("build etcd", 93.2)
    out = io.StringIO()
    with Progress(durations, total=2, out=out).step("build etcd", "build etcd"):
        assert "[1/2] build etcd ... (last time 1m33s)" in out.getvalue()
    took = durations.last("build etcd")
    assert took is not None
    assert took < 5


def test_without_a_terminal_no_control_characters_are_written(tmp_path: Path) -> None:
    out = io.StringIO()
    progress = Progress(Durations(tmp_path / "durations.json"), total=1, out=out)
    with progress.step("etcd") as step:
        step.note("12 packages")
    assert "\x1b" not in out.getvalue()
    assert "\r" not in out.getvalue()
    assert out.getvalue().endswith(", 12 packages\n")


def test_on_a_terminal_the_line_is_redrawn(tmp_path: Path) -> None:
    out = Terminal()
    with Progress(Durations(tmp_path / "durations.json"), out=out).step("etcd"):
        pass
    assert out.getvalue().startswith("\r\x1b[2K  etcd: done in ")


def test_a_failed_step_says_so_and_leaves_no_duration(tmp_path: Path) -> None:
    durations, out = Durations(tmp_path / "durations.json"), io.StringIO()
    with pytest.raises(RuntimeError), Progress(durations, out=out).step("etcd", "etcd"):
        raise RuntimeError
    assert "etcd: failed in" in out.getvalue()
    assert durations.last("etcd") is None


def test_a_broken_file_of_durations_is_as_good_as_none(tmp_path: Path) -> None:
    path = tmp_path / "durations.json"
    path.write_text("{half a file")
    durations = Durations(path)
    assert durations.last("etcd") is None
    durations.record("etcd", 3)
    assert durations.last("etcd") == 3
