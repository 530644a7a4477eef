from dataclasses import replace
from pathlib import Path

from e2e.cluster import record
from e2e.cluster.config import ClusterConfig


def test_a_cluster_is_found_again_as_it_was_started(tmp_path: Path) -> None:
    config = ClusterConfig(cache_dir=tmp_path, node_count=2)
    written = record.make(config, {"etcd": "1"}, {"etcd": Path("/bin/etcd")}, None)
    record.write(written, tmp_path / "cluster.json")
    found = record.read(tmp_path / "cluster.json")
    assert found == written
    assert found is not None
    assert found.config() == config


def test_a_record_of_before_the_last_boot_describes_nothing(tmp_path: Path) -> None:
    old = replace(record.make(ClusterConfig(cache_dir=tmp_path), {}, {}, None), boot_id="another")
    record.write(old, tmp_path / "cluster.json")
    assert record.read(tmp_path / "cluster.json") is None


def test_a_damaged_record_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    for text in ("", "{}", "[1]", '{"cache_dir": 1}'):
        path.write_text(text)
        assert record.read(path) is None


def test_settings_noted_before_the_first_start_stay_the_machines_own(tmp_path: Path) -> None:
    config = ClusterConfig(cache_dir=tmp_path)
    first = replace(record.make(config, {}, {}, None), sysctls={"vm/overcommit_memory": "0"})
    assert record.make(config, {}, {}, first).sysctls == {"vm/overcommit_memory": "0"}
