"""Print what an extra of pyproject.toml requires, one requirement a line.

`python requirements.py pyproject.toml runtime` runs inside the image's build, so that the layer with the dependencies
is made from them alone: no edit of the code, or of anything else in pyproject.toml, makes it anew.
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extra: str) -> list[str]:
    """The distribution's own requirements and those of `extra`.

    Raises:
        KeyError: there is no such extra.
    """
    project = tomllib.loads(pyproject.read_text())["project"]
    return sorted([*project["dependencies"], *project["optional-dependencies"][extra]])


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]), sys.argv[2])))
