from pathlib import Path

import pytest

from e2e.cluster.errors import ClusterError
from e2e.cluster.locks import exclusive


def test_the_second_comer_is_told_and_then_refused_with_a_remedy(tmp_path: Path) -> None:
    told: list[str] = []
    lock = tmp_path / "a.lock"
    with (
        exclusive(lock, 1),
        pytest.raises(ClusterError, match=f"fuser {lock}"),
        exclusive(lock, 0, lambda: told.append("waiting")),
    ):
        pass
    with exclusive(lock, 0):
        told.append("free again")
    assert told[-1] == "free again"
