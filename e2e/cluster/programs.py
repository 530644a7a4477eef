"""Which programs the cluster consists of, and where a built one lies.

A program's folder in the cache is named by a hash of everything that decides what it is, so an edited `go.mod` or a
new flag builds anew, two checkouts share what is equal, and nothing is rebuilt otherwise.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

GO_DIR = Path(__file__).parent / "go"
KUBERNETES_VERSION = "1.37.2"
CONTAINERD_VERSION = "2.4.2"
HELM_VERSION = "4.3.1"


@dataclass(frozen=True)
class GoProgram:
    """One `go build`."""

    name: str
    module: str
    """Folder below go/ whose go.mod and go.sum pin every dependency."""
    package: str
    linker_values: tuple[tuple[str, str], ...] = ()
    """Variables set at link time: without its version Kubernetes turns features off."""
    tags: tuple[str, ...] = ()
    called_as: tuple[str, ...] = ()
    """Names under which one program does several commands' work."""

    def commands(self) -> tuple[str, ...]:
        """What can be run once it is built."""
        return self.called_as or (self.name,)

    def ldflags(self) -> str:
        """Linker flags: no symbol table, no debugging information, and the values."""
        return " ".join(["-s", "-w", *(f"-X {variable}={value}" for variable, value in self.linker_values)])

    def key(self) -> str:
        """Hash of the module's files and the flags; 16 hexadecimal digits."""
        digest = hashlib.sha256()
        for path in sorted((GO_DIR / self.module).iterdir()):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        digest.update("\0".join((self.package, self.ldflags(), *self.tags, "called", *self.called_as)).encode())
        return digest.hexdigest()[:16]

    def folder(self, cache_dir: Path) -> Path:
        """Where it lies once built."""
        return cache_dir / "bin" / f"{self.name}-{self.key()}"


_KUBERNETES_VERSION_PACKAGE = "k8s.io/component-base/version"
_CONTAINERD = "github.com/containerd/containerd/v2"
_CONTAINERD_VERSION = ((f"{_CONTAINERD}/version.Version", f"v{CONTAINERD_VERSION}"),)
_CONTAINERD_TAGS = ("no_btrfs", "no_devmapper", "no_zfs")

GO_PROGRAMS = (
    GoProgram("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    GoProgram("containerd", "containerd", f"{_CONTAINERD}/cmd/containerd", _CONTAINERD_VERSION, _CONTAINERD_TAGS),
    GoProgram(
        "containerd-shim-runc-v2",
        "containerd",
        f"{_CONTAINERD}/cmd/containerd-shim-runc-v2",
        _CONTAINERD_VERSION,
        _CONTAINERD_TAGS,
    ),
    GoProgram("ctr", "containerd", f"{_CONTAINERD}/cmd/ctr", _CONTAINERD_VERSION, _CONTAINERD_TAGS),
    GoProgram(
        "kubernetes",
        "kubernetes",
        ".",
        (
            (f"{_KUBERNETES_VERSION_PACKAGE}.gitVersion", f"v{KUBERNETES_VERSION}"),
            (f"{_KUBERNETES_VERSION_PACKAGE}.gitMajor", KUBERNETES_VERSION.split(".")[0]),
            (f"{_KUBERNETES_VERSION_PACKAGE}.gitMinor", KUBERNETES_VERSION.split(".")[1]),
            (f"{_KUBERNETES_VERSION_PACKAGE}.gitTreeState", "clean"),
        ),
        called_as=("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"),
    ),
)


def helm_folder(cache_dir: Path) -> Path:
    """Where helm lies once fetched."""
    return cache_dir / "bin" / f"helm-{HELM_VERSION}"


def folders(cache_dir: Path) -> list[Path]:
    """Every folder with programs of this checkout, for a PATH."""
    return [*(program.folder(cache_dir) for program in GO_PROGRAMS), helm_folder(cache_dir)]


def program_path(cache_dir: Path, command: str, programs: Iterable[GoProgram] = GO_PROGRAMS) -> Path:
    """The file that `command` is run from; it exists once `build` has been run.

    Raises:
        KeyError: no program answers to that name, a mistake in the calling code.
    """
    if command == "helm":
        return helm_folder(cache_dir) / "helm"
    for program in programs:
        if command in program.commands():
            return program.folder(cache_dir) / command
    raise KeyError(command)
