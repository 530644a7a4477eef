import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import cgroups
from e2e.cluster.errors import ClusterError


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for its input to end."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        yield child
        child.kill()


def hierarchy(root: Path, name: str, pids: list[int]) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return root


def test_members_are_those_of_every_hierarchy_and_of_everything_below(tmp_path: Path) -> None:
    one = hierarchy(tmp_path / "one", "octavo/system", [os.getpid()])
    two = hierarchy(tmp_path / "two", "octavo/node1/pod", [os.getppid()])
    assert cgroups.members("octavo", [one, two]) == {os.getpid(), os.getppid()}


def test_a_process_that_is_gone_is_no_member(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    root = hierarchy(tmp_path, "octavo", [process.pid])
    assert cgroups.members("octavo", [root]) == {process.pid}
    process.kill()
    process.wait(timeout=10)
    assert cgroups.members("octavo", [root]) == set()


def test_killing_ends_the_members(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    root = hierarchy(tmp_path, "octavo", [process.pid])
    cgroups.kill_all("octavo", [root], timeout_seconds=10)
    assert process.wait(timeout=10) == -9


def test_a_process_that_cannot_be_killed_is_named(
    tmp_path: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = hierarchy(tmp_path, "octavo", [process.pid])
    monkeypatch.setattr(os, "kill", lambda _pid, _signal: None)
    with pytest.raises(ClusterError, match=rf"{process.pid} \(.*python"):
        cgroups.kill_all("octavo", [root], timeout_seconds=0)
    monkeypatch.undo()


def test_a_new_cpuset_inherits_processors_without_which_it_takes_no_process(tmp_path: Path) -> None:
    (tmp_path / "octavo").mkdir()
    for folder in (tmp_path, tmp_path / "octavo"):
        (folder / "cgroup.clone_children").write_text("0")
        (folder / "cpuset.cpus").write_text("0-1\n" if folder == tmp_path else "\n")
        (folder / "cpuset.mems").write_text("0\n" if folder == tmp_path else "\n")
    cgroups.create("octavo", [tmp_path])
    assert (tmp_path / "octavo" / "cpuset.cpus").read_text() == "0-1"


def test_version_two_controllers_are_handed_down(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    cgroups.create("octavo", [tmp_path])
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +memory"


def test_removal_takes_the_deepest_first_and_may_be_repeated(tmp_path: Path) -> None:
    (tmp_path / "octavo" / "node1" / "pod").mkdir(parents=True)
    cgroups.remove("octavo", [tmp_path])
    cgroups.remove("octavo", [tmp_path])
    assert cgroups.existing("octavo", [tmp_path]) == []


def test_weight_is_written_in_the_units_of_either_version(tmp_path: Path) -> None:
    for version, file in (("one", "cpu.shares"), ("two", "cpu.weight")):
        (tmp_path / version / "octavo").mkdir(parents=True)
        (tmp_path / version / "octavo" / file).write_text("0")
    cgroups.weigh("octavo", [tmp_path / "one", tmp_path / "two"], 16)
    assert (tmp_path / "one" / "octavo" / "cpu.shares").read_text() == "16384"
    assert (tmp_path / "two" / "octavo" / "cpu.weight").read_text() == "1600"
