import socket
from pathlib import Path

import pytest

from e2e.cluster import foreign
from e2e.cluster.config import ClusterConfig


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to bind sockets in by short names: a socket's path has at most 107 bytes."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_only_a_socket_without_a_listener_is_dead(short: Path) -> None:
    listener, ended = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    with listener:
        listener.bind("alive")
        listener.listen()
        ended.bind("dead")
        ended.listen()
        ended.close()
        Path("file").touch()
        found = {name: foreign.is_dead_socket(Path(name)) for name in ("alive", "dead", "file", "absent")}
    assert found == {"alive": False, "dead": True, "file": False, "absent": False}


def test_links_and_network_results_of_others_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ClusterConfig(cache_dir=tmp_path / "cache")
    logs, results = tmp_path / "logs", tmp_path / "results"
    logs.mkdir()
    results.mkdir()
    (logs / "ours").symlink_to(config.state_dir / "node1" / "pod-logs" / "0.log")
    (logs / "theirs").symlink_to("/var/log/pods/0.log")
    for name in ("octavo-pods-1-eth0", "podman-2-eth0"):
        (results / name).touch()
    for constant, folder in (("CONTAINER_LOGS", logs), ("CNI_RESULTS", results)):
        monkeypatch.setattr(foreign, constant, folder)
    for constant in ("SHIM_SOCKETS", "DEVICE_PLUGINS"):
        monkeypatch.setattr(foreign, constant, tmp_path / "absent")
    assert foreign.files(config) == [results / "octavo-pods-1-eth0", logs / "ours"]
    monkeypatch.setattr(foreign, "EMPTY_DIRS", (logs, results))
    foreign.remove(config)
    assert list(logs.iterdir()) == [logs / "theirs"]
    assert list(results.iterdir()) == [results / "podman-2-eth0"]
