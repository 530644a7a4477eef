"""The image that ours are built on.

Ordinarily that is `python:3.12-slim` from its registry. Where no registry of base images can be reached, one is made
with debootstrap: Debian's minimal system and its Python. The release is this machine's when it runs Debian, so that
wheels fetched for this machine's Python fit the image's as well and are not downloaded twice.
"""

import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from e2e.cluster.commands import run
from e2e.cluster.debian import SYSTEM_PATH
from e2e.cluster.errors import ClusterError
from images.errors import ImageError

DEFAULT_BASE = "docker.io/library/python:3.12-slim"
DEFAULT_REGISTRY_CHECK = "https://registry-1.docker.io/v2/"
CHECK_TIMEOUT_SECONDS = 5.0
DEBOOTSTRAP_TIMEOUT_SECONDS = 900.0
FALLBACK_SUITE = "bookworm"
FALLBACK_MIRROR = "http://deb.debian.org/debian"
PACKAGES = ("python3", "python3-venv", "ca-certificates")
NOT_NEEDED = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/cache/apt",
    "var/lib/apt/lists",
)
"""Of a container's system: only people read it."""


def registry_reachable() -> bool:
    """Whether the default base can be pulled: its registry answers at all, if only that one must log in."""
    try:
        with urllib.request.urlopen(DEFAULT_REGISTRY_CHECK, timeout=CHECK_TIMEOUT_SECONDS):
            return True
    except urllib.error.HTTPError as error:
        return error.code == 401
    except OSError:
        return False


def suite_of(os_release: str) -> str:
    """The Debian release to bootstrap, from /etc/os-release's text."""
    fields = dict(line.split("=", 1) for line in os_release.splitlines() if "=" in line)
    is_debian = fields.get("ID", "").strip('"') == "debian"
    return fields.get("VERSION_CODENAME", FALLBACK_SUITE).strip('"') if is_debian else FALLBACK_SUITE


def mirror_of(apt_sources: Mapping[str, str]) -> str:
    """The archive this machine installs from: the first one of Debian proper in apt's files (name to text)."""
    for text in apt_sources.values():
        for line in text.splitlines():
            words = line.split("#")[0].split()
            uris = words[1:] if words[:1] == ["URIs:"] else [word for word in words if "://" in word]
            for uri in uris:
                if uri.rstrip("/").endswith("/debian"):
                    return uri
    return FALLBACK_MIRROR


def bootstrap(target: Path) -> None:
    """Put a Debian system with Python into `target`, which must not exist; it appears whole or not at all.

    Raises:
        ImageError: not root, or debootstrap fails.
    """
    if os.geteuid() != 0:
        raise ImageError("making a base image with debootstrap needs root; or name a base with OCTAVO_BASE_IMAGE")
    suite = this_suite()
    mirror = mirror_of(_apt_sources())
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".base-", dir=target.parent) as scratch:
        system = Path(scratch) / "system"
        options = ["--variant=minbase", f"--include={','.join(PACKAGES)}"]
        try:
            environment = {**os.environ, "PATH": SYSTEM_PATH}
            run(["debootstrap", *options, suite, system, mirror], DEBOOTSTRAP_TIMEOUT_SECONDS, env=environment)
        except ClusterError as error:
            raise ImageError(str(error)) from error
        _trim(system)
        (system / "etc/apt/sources.list").write_text(f"deb {FALLBACK_MIRROR} {suite} main\n")
        system.rename(target)


def this_suite() -> str:
    """The release for this machine."""
    return suite_of(Path("/etc/os-release").read_text())


def apt_source() -> str:
    """A sources.list with this machine's archive, lent to a build and kept by no layer."""
    return f"deb {mirror_of(_apt_sources())} {this_suite()} main\n"


def _apt_sources() -> dict[str, str]:
    folder = Path("/etc/apt")
    paths = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.sources"))]
    paths += sorted((folder / "sources.list.d").glob("*.list"))
    return {str(path): path.read_text() for path in paths if path.is_file()}


def _trim(system: Path) -> None:
    for name in NOT_NEEDED:
        for path in (system / name).glob("*"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
