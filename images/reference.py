"""Image references: `10.99.0.1:5000/octavo/runtime:1a2b3c`."""

import re
from dataclasses import dataclass

from images.errors import ImageError

_PATTERN = re.compile(
    r"(?P<host>[a-zA-Z0-9.-]+(?::\d+)?)/(?P<repository>[a-z0-9]+(?:[._/-][a-z0-9]+)*)(?::(?P<tag>[\w][\w.-]{0,127}))?"
)


@dataclass(frozen=True)
class Reference:
    """Where an image lies."""

    host: str
    repository: str
    tag: str = "latest"

    def __str__(self) -> str:
        return f"{self.host}/{self.repository}:{self.tag}"

    def at(self, digest: str) -> str:
        """The same image by what it is instead of by name."""
        return f"{self.host}/{self.repository}@{digest}"


def parse(text: str) -> Reference:
    """Read `HOST[:PORT]/REPOSITORY[:TAG]`.

    Raises:
        ImageError: anything else; a host is required because no default registry is assumed.
    """
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ImageError(f"{text!r} is no image reference like HOST[:PORT]/REPOSITORY[:TAG]")
    return Reference(match["host"], match["repository"], match["tag"] or "latest")
