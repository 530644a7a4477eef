"""The Debian packages the cluster stands on: each is looked for, and installed where that is possible."""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.commands import run
from e2e.cluster.errors import ClusterError

APT_TIMEOUT_SECONDS = 600.0
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class DebianPackage:
    """A package and the file by which its presence is known."""

    name: str
    proof: str
    """A command looked for on the system's path, or an absolute path."""
    needed_for: str

    def present(self) -> bool:
        """Whether it is there, from whatever source."""
        if self.proof.startswith("/"):
            return Path(self.proof).exists()
        return shutil.which(self.proof, path=SYSTEM_PATH) is not None


CLUSTER_PACKAGES = (
    DebianPackage("runc", "runc", "running containers"),
    DebianPackage("containernetworking-plugins", "/usr/lib/cni/bridge", "pod networks"),
    DebianPackage("iptables", "iptables", "Services"),
    DebianPackage("conntrack", "conntrack", "Services"),
    DebianPackage("iproute2", "ip", "network namespaces"),
    DebianPackage("util-linux", "nsenter", "network namespaces"),
    DebianPackage("gcc", "gcc", "the pause image"),
    DebianPackage("libc6-dev", "/usr/include/stdio.h", "the pause image"),
)
IMAGE_PACKAGES = (
    DebianPackage("buildah", "buildah", "building images"),
    DebianPackage("debootstrap", "debootstrap", "a base image where no registry of base images can be reached"),
)


def ensure(packages: tuple[DebianPackage, ...], say: Callable[[str], None]) -> None:
    """Install what is missing.

    Raises:
        ClusterError: something is missing and this process may not install it; the message is the command to run.
    """
    absent = [package for package in packages if not package.present()]
    if not absent:
        return
    names = [package.name for package in absent]
    why = "; ".join(f"{package.name} for {package.needed_for}" for package in absent)
    if os.geteuid() != 0 or shutil.which("apt-get", path=SYSTEM_PATH) is None:
        raise ClusterError(f"missing: {why}. Run as root: apt-get install --no-install-recommends {' '.join(names)}")
    say(f"installing Debian packages: {', '.join(names)}")
    environment = apt_environment(os.environ)
    run(["apt-get", "update", "-q"], APT_TIMEOUT_SECONDS, env=environment)
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *names]
    run(install, APT_TIMEOUT_SECONDS, env=environment)
    still = [package.name for package in absent if not package.present()]
    if still:
        raise ClusterError(f"apt-get reported success, but {', '.join(still)} did not bring what it should")


def apt_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment in which apt asks nothing."""
    return {**environ, "DEBIAN_FRONTEND": "noninteractive", "PATH": SYSTEM_PATH}


def registry_program(cache_dir: Path, say: Callable[[str], None]) -> Path:
    """Debian's docker-registry program.

    The package is unpacked into the cache rather than installed: installing it starts a system service on the very
    port this cluster's registry uses.

    Raises:
        ClusterError: neither installed nor to be had by apt-get.
    """
    installed = shutil.which("docker-registry", path=SYSTEM_PATH)
    if installed:
        return Path(installed)
    folder = cache_dir / "bin" / "docker-registry"
    program = folder / "usr" / "bin" / "docker-registry"
    if program.exists():
        return program
    if shutil.which("apt-get", path=SYSTEM_PATH) is None:
        raise ClusterError("docker-registry, the local image registry, is not on PATH: please install it")
    say("fetching the Debian package docker-registry")
    folder.parent.mkdir(parents=True, exist_ok=True)
    environment = apt_environment(os.environ)
    if os.geteuid() == 0:
        run(["apt-get", "update", "-q"], APT_TIMEOUT_SECONDS, env=environment)
    with tempfile.TemporaryDirectory(prefix=".docker-registry-", dir=folder.parent) as scratch:
        run(["apt-get", "download", "-q", "docker-registry"], APT_TIMEOUT_SECONDS, env=environment, cwd=Path(scratch))
        archives = list(Path(scratch).glob("*.deb"))
        if len(archives) != 1:
            raise ClusterError(f"apt-get download docker-registry left {len(archives)} archives, not one")
        unpacked = Path(scratch) / "unpacked"
        run(["dpkg", "-x", archives[0], unpacked], APT_TIMEOUT_SECONDS)
        unpacked.rename(folder)
    return program
