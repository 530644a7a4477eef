"""This machine's package indexes and certificates, handed to a build without becoming part of an image."""

import json
from collections.abc import Mapping
from pathlib import Path

CERTIFICATES = Path("/etc/ssl/certs")


def pip_conf(environ: Mapping[str, str]) -> str:
    """pip's configuration file with the indexes that the environment names."""
    settings = {
        "index-url": environ.get("PIP_INDEX_URL") or environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL"),
        "extra-index-url": environ.get("PIP_EXTRA_INDEX_URL") or environ.get("UV_EXTRA_INDEX_URL"),
        "timeout": environ.get("PIP_DEFAULT_TIMEOUT"),
    }
    return "\n".join(["[global]", *(f"{name} = {value}" for name, value in settings.items() if value)]) + "\n"


def uv_toml(environ: Mapping[str, str], user_file: str | None) -> str:
    """uv's configuration file: the user's own where there is one, else the indexes that the environment names."""
    if user_file is not None:
        return user_file
    index = environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL") or environ.get("PIP_INDEX_URL")
    extra = (environ.get("UV_EXTRA_INDEX_URL") or environ.get("PIP_EXTRA_INDEX_URL") or "").split()
    lines = [f"index-url = {json.dumps(index)}"] if index else []
    lines += [f"extra-index-url = {json.dumps(extra)}"] if extra else []
    return "\n".join([*lines, ""])


def write(folder: Path, environ: Mapping[str, str]) -> dict[str, Path]:
    """Both files below `folder`, by the name under which a Dockerfile asks for them."""
    user = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "uv" / "uv.toml"
    texts = {
        "pip.conf": pip_conf(environ),
        "uv.toml": uv_toml(environ, user.read_text() if user.is_file() else None),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return {name: folder / name for name in texts}


def uv_cache(environ: Mapping[str, str]) -> Path:
    """Where uv keeps what it fetched. Source: uv's documentation, "Caching"."""
    if chosen := environ.get("UV_CACHE_DIR"):
        return Path(chosen).absolute()
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "uv"
