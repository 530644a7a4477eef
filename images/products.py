"""The two images of the product: their Dockerfiles, what goes into them, and the tag that follows from that."""

import fnmatch
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from images.reference import Reference

ROOT = Path(__file__).parent.parent
IGNORED = ("__pycache__", "*.pyc", "*.so")
"""Never part of an image, as .dockerignore says."""


@dataclass(frozen=True)
class Product:
    """One image."""

    name: str
    sources: tuple[str, ...]
    """Files and folders of the repository that its Dockerfile copies, relative to the root."""

    @property
    def dockerfile(self) -> Path:
        """How it is made."""
        return ROOT / "images" / f"{self.name}.Dockerfile"

    def files(self, root: Path = ROOT) -> list[Path]:
        """Every file that decides what is in the image, in a fixed order."""
        return [
            *_files(root, "images/" + self.dockerfile.name),
            *(f for name in self.sources for f in _files(root, name)),
        ]

    def tag(self, base: str, root: Path = ROOT) -> str:
        """12 hexadecimal digits that change exactly when an input does."""
        digest = hashlib.sha256(base.encode())
        for path in self.files(root):
            mode = b"x" if path.stat().st_mode & 0o100 else b"-"
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + mode + path.read_bytes() + b"\0")
        return digest.hexdigest()[:12]

    def reference(self, host: str, base: str) -> Reference:
        """Where the image with today's content lies in a registry."""
        return Reference(host, f"octavo/{self.name}", self.tag(base))


COMMON = ("constraints.txt", "pyproject.toml", "images/requirements.py")
_OPERATOR = Product(
    "operator",
    (
        *COMMON,
        "images/octavo-operator",
        "runtime/octavo_runtime/__init__.py",
        "runtime/octavo_runtime/contract",
        "operator/octavo_operator",
        "crds",
    ),
)
_RUNTIME = Product(
    "runtime",
    (
        *COMMON,
        "images/octavo",
        "kernels/octavo_kernels/__init__.py",
        "kernels/octavo_kernels/cpu",
        "kernels/octavo_kernels",
        "runtime/octavo_runtime",
    ),
)
PRODUCTS = {product.name: product for product in (_OPERATOR, _RUNTIME)}


def _files(root: Path, name: str) -> Iterator[Path]:
    top = root / name
    if top.is_file():
        yield top
        return
    for path in sorted(top.rglob("*")):
        parts = path.relative_to(root).parts
        if path.is_file() and not any(fnmatch.fnmatch(part, pattern) for part in parts for pattern in IGNORED):
            yield path
