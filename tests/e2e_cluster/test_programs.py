from dataclasses import replace
from pathlib import Path

import pytest

from e2e.cluster import programs
from e2e.cluster.build import find_go, go_command
from e2e.cluster.errors import ClusterError
from e2e.cluster.programs import GO_DIR, GO_PROGRAMS, KUBERNETES_VERSION, GoProgram, program_path


def named(name: str) -> GoProgram:
    return next(program for program in GO_PROGRAMS if program.name == name)


def test_every_command_of_a_cluster_is_found_and_all_of_kubernetes_is_one_file(tmp_path: Path) -> None:
    kubelet, kubectl = (program_path(tmp_path, command) for command in ("kubelet", "kubectl"))
    assert kubelet.parent == kubectl.parent
    for command in ("etcd", "containerd", "containerd-shim-runc-v2", "ctr", "kube-apiserver", "helm"):
        assert tmp_path in program_path(tmp_path, command).parents


def test_two_programs_of_one_module_lie_apart() -> None:
    assert named("containerd").key() != named("ctr").key()


def test_another_flag_or_another_dependency_is_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    etcd = named("etcd")
    assert replace(etcd, tags=("x",)).key() != etcd.key()
    module = tmp_path / "etcd"
    module.mkdir()
    for path in (GO_DIR / "etcd").iterdir():
        (module / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(programs, "GO_DIR", tmp_path)
    assert etcd.key() == named("etcd").key()
    (module / "go.sum").write_text("another\n")
    changed = etcd.key()
    monkeypatch.undo()
    assert changed != etcd.key()


def test_kubernetes_is_told_its_version_which_decides_its_features(tmp_path: Path) -> None:
    words = " ".join(go_command(named("kubernetes"), Path("go"), tmp_path / "out"))
    assert f"-X k8s.io/component-base/version.gitVersion=v{KUBERNETES_VERSION}" in words
    assert f"v{KUBERNETES_VERSION}" in (GO_DIR / "kubernetes" / "go.mod").read_text()


def test_checksums_are_enforced_and_no_address_is_in_the_pinned_files(tmp_path: Path) -> None:
    assert "-mod=readonly" in go_command(named("etcd"), Path("go"), tmp_path)
    for path in GO_DIR.glob("*/go.*"):
        assert "://" not in path.read_text(), path


def test_without_go_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(ClusterError, match="Go is needed"):
        find_go()


def test_a_go_that_cannot_fetch_the_one_needed_is_refused_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "go"
    old.write_text("#!/bin/sh\necho go1.19.8\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ClusterError, match=r"go1\.19\.8, too old"):
        find_go()
