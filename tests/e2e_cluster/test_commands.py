import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster.commands import run, stream, succeeds
from e2e.cluster.errors import ClusterError

ROOT = Path(__file__).parent.parent.parent


def test_a_failure_is_told_in_the_programs_own_words() -> None:
    with pytest.raises(ClusterError, match="failed with status 3: no such thing"):
        run(["sh", "-c", "echo no such thing >&2; exit 3"])


def test_a_program_that_does_not_end_is_ended() -> None:
    with pytest.raises(ClusterError, match="did not end within 0 s"):
        run(["cat", "/dev/zero"], timeout_seconds=0.2)
    with pytest.raises(ClusterError, match="did not end within 0 s and was ended"):
        stream(["tail", "-f", "/dev/null"], 0.2, lambda _line: None)


def test_a_missing_program_is_named() -> None:
    with pytest.raises(ClusterError, match="no-such-program is not installed"):
        run(["no-such-program"])
    assert not succeeds(["no-such-program"])


def test_lines_of_both_outputs_arrive_as_they_are_written() -> None:
    heard: list[str] = []
    assert stream(["sh", "-c", "echo one; echo two >&2; exit 4"], 10, heard.append) == 4
    assert heard == ["one", "two"]


def command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    argv = [sys.executable, "-m", "e2e.cluster", *arguments]
    return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", ["build", "up", "down", "status"])
def test_a_users_own_cluster_is_left_alone(name: str, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.touch()
    done = command(name, OCTAVO_KUBECONFIG=str(kubeconfig), OCTAVO_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0
    assert "nothing is built, started or removed" in done.stdout
    assert not (tmp_path / "cache").exists()


def test_a_mistake_ends_in_one_line_without_a_traceback(tmp_path: Path) -> None:
    done = command("status", OCTAVO_KUBECONFIG=str(tmp_path / "absent"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: OCTAVO_KUBECONFIG=")
    assert len(done.stderr.splitlines()) == 1
