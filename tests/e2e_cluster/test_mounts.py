from pathlib import Path

from e2e.cluster.mounts import below, parse

TEXT = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices
50 27 0:40 / /run/octavo/node1/a\\040pod rw - tmpfs tmpfs rw
51 50 0:41 / /run/octavo/node1/a\\040pod/inner rw shared:3 - overlay overlay rw,lowerdir=/x
52 27 0:42 / /run/octavo-of-somebody-else rw - tmpfs tmpfs rw
"""


def test_the_last_made_mount_comes_first_and_names_are_unescaped() -> None:
    points = below([Path("/run/octavo")], parse(TEXT))
    assert points == [Path("/run/octavo/node1/a pod/inner"), Path("/run/octavo/node1/a pod")]


def test_a_folder_whose_name_merely_begins_alike_is_not_below() -> None:
    assert Path("/run/octavo-of-somebody-else") not in below([Path("/run/octavo")], parse(TEXT))


def test_kind_and_file_system_options_are_read_past_the_optional_fields() -> None:
    kinds = {mount.point: mount.kind for mount in parse(TEXT)}
    assert kinds[Path("/sys/fs/cgroup/devices")] == "cgroup"
    assert kinds[Path("/run/octavo/node1/a pod/inner")] == "overlay"
