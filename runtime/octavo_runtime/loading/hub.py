"""Checkpoints on a Hugging Face hub: resolve a revision to its commit, read headers by range requests.

`huggingface_hub` does the talking, so HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, proxies and certificate settings mean
what users know them to mean. What it raises becomes a `Refused` with a reason here, and only here.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import httpx2
from huggingface_hub import HfApi, get_token, hf_hub_url
from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    XetDownloadError,
)
from huggingface_hub.utils._headers import build_hf_headers
from huggingface_hub.utils._http import get_session, hf_raise_for_status

from octavo_runtime.contract.refused import Refused

REQUEST_TIMEOUT_SECONDS = 30.0
"""For each connect and each read of a metadata or header request."""

READ_DEADLINE_SECONDS = 300.0
"""For one range request as a whole; the longest header has 100 MB."""

ATTEMPTS = 5
BACKOFF_SECONDS = (1.0, 2.0, 4.0, 8.0)
"""Pauses between attempts, each with up to 50 % of jitter: hubs answer 429 by address, and pods start together."""

RETRY_AFTER_LIMIT_SECONDS = 60.0

SERVER_ERRORS = 500
TOO_MANY_REQUESTS = 429
PARTIAL_CONTENT = 206

_SOURCE = re.compile(
    r"^hf://(?P<repo>[A-Za-z0-9_][A-Za-z0-9._-]{0,95}(?:/[A-Za-z0-9_][A-Za-z0-9._-]{0,95})?)"
    r"(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]{0,127}))?$"
)
_COMMIT = re.compile(r"^[0-9a-f]{40}$")

CLIENT_ERRORS = (
    OSError,  # HfHubHTTPError and everything that the client wraps
    httpx2.HTTPError,
    httpx2.InvalidURL,
    HFValidationError,
    XetDownloadError,
    json.JSONDecodeError,  # a captive portal answers 200 with a web page
)

T = TypeVar("T")


@dataclass(frozen=True)
class HubSource:
    """A repository and, when given, a branch, tag or commit of it."""

    repo: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubSource:
        """Parse `hf://repo[@revision]`; raises Refused `SourceInvalid`."""
        match = _SOURCE.fullmatch(text)
        if match is None:
            raise Refused(
                "SourceInvalid",
                f"{text!r} is no hub address; it looks like hf://Qwen/Qwen3-30B-A3B or hf://repo@commit",
            )
        return cls(match["repo"], match["revision"])

    @property
    def pinned(self) -> bool:
        """Whether the revision is a commit, which never changes."""
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None

    def __str__(self) -> str:
        return f"hf://{self.repo}" + (f"@{self.revision}" if self.revision else "")


class HubFiles:
    """The top-level files of one commit; implements `CheckpointFiles`."""

    def __init__(self, source: HubSource, commit: str, sizes: Mapping[str, int], endpoint: str | None = None) -> None:
        self.source = source
        self.commit = commit
        self.endpoint = endpoint
        self._sizes = sizes

    @classmethod
    def open(
        cls, source: HubSource, *, endpoint: str | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> HubFiles:
        """Resolve the revision and list the files; `endpoint` None means HF_ENDPOINT or its default. Raises Refused."""

        def ask() -> HubFiles:
            info = HfApi(endpoint=endpoint).model_info(
                source.repo, revision=source.revision, files_metadata=True, timeout=REQUEST_TIMEOUT_SECONDS
            )
            if info.sha is None or info.siblings is None:
                raise Refused("SourceUnreachable", f"the hub named no commit for {source}", retryable=True)
            sizes = {f.rfilename: f.size or 0 for f in info.siblings if "/" not in f.rfilename}
            return cls(source, info.sha, sizes, endpoint)

        return patiently(source, ask, sleep)

    @property
    def where(self) -> str:
        """The address with the resolved commit."""
        return f"hf://{self.source.repo}@{self.commit}"

    @property
    def readers(self) -> int:
        """Eight: a request takes about 100 ms, a large checkpoint has up to 200 files."""
        return 8

    def sizes(self) -> Mapping[str, int]:
        """File name -> bytes as the hub lists them."""
        return self._sizes

    def read(self, name: str, start: int, length: int) -> bytes:
        """At most `length` bytes from `start` in one range request; raises Refused.

        A server that ignores ranges is read from its beginning and cut off, never downloaded whole.
        """
        if length <= 0:
            return b""
        return patiently(self.source, lambda: self._read_range(name, start, length))

    def _read_range(self, name: str, start: int, length: int) -> bytes:
        url = hf_hub_url(self.source.repo, name, revision=self.commit, endpoint=self.endpoint)
        headers = build_hf_headers() | {
            "Range": f"bytes={start}-{start + length - 1}",
            "Accept-Encoding": "identity",
        }
        deadline = time.monotonic() + READ_DEADLINE_SECONDS
        received = bytearray()
        with get_session().stream("GET", url, headers=headers, timeout=REQUEST_TIMEOUT_SECONDS) as response:
            if response.is_error:
                response.read()
            hf_raise_for_status(response)
            skip = 0 if response.status_code == PARTIAL_CONTENT else start
            for chunk in response.iter_bytes():
                received += chunk
                if len(received) >= skip + length:
                    break
                if time.monotonic() > deadline:
                    raise httpx2.ReadTimeout(f"{name}: {len(received)} bytes in {READ_DEADLINE_SECONDS:.0f} s")
        return bytes(received[skip : skip + length])


def patiently(source: HubSource, call: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
    """`call()`, again after a pause while the refusal is retryable, at most ATTEMPTS times; raises the last Refused."""
    for pause in BACKOFF_SECONDS[: ATTEMPTS - 1]:
        try:
            with refusals_of(source):
                return call()
        except Refused as refused:
            if not refused.retryable or isinstance(refused.__cause__, OfflineModeIsEnabled):
                raise
            sleep(_pause(refused.__cause__, pause))
    with refusals_of(source):
        return call()


def _pause(cause: BaseException | None, backoff_seconds: float) -> float:
    """Seconds to wait: what the server asked for within reason, else the back-off with jitter."""
    if isinstance(cause, HfHubHTTPError):
        asked = cause.response.headers.get("Retry-After", "")
        if asked.isdecimal():
            return min(float(asked), RETRY_AFTER_LIMIT_SECONDS)
    return backoff_seconds * (1 + random.random() / 2)  # noqa: S311


@contextmanager
def refusals_of(source: HubSource) -> Iterator[None]:
    """Turn what the hub's client raises into a Refused that names `source` and what to do."""
    try:
        yield
    except Refused:
        raise
    except CLIENT_ERRORS as error:
        cause = _root(error)
        raise _refusal(source, cause) from cause


def _root(error: BaseException) -> BaseException:
    """What happened on the way to a file, which the hub's client wraps into `LocalEntryNotFoundError`."""
    seen = 0
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None and seen < 8:
        error, seen = error.__cause__, seen + 1
    return error


def _refusal(source: HubSource, error: BaseException) -> Refused:
    token = "with the token given" if get_token() else "without a token"
    give = "set HF_TOKEN (in a ModelDeployment: spec.model.secretRef)"
    match error:
        case GatedRepoError() | DisabledRepoError():
            return Refused(
                "SourceForbidden",
                f"{source} is gated or disabled and was asked for {token}: accept its terms on the hub and {give} "
                f"to a token of that account",
            )
        case RepositoryNotFoundError():
            return Refused(
                "SourceNotFound",
                f"the hub has no model repository {source.repo}, or hides it: it was asked {token}; correct the name, "
                f"or {give} when the repository is private",
            )
        case RevisionNotFoundError():
            return Refused(
                "SourceNotFound", f"{source.repo} has no revision {source.revision or 'main'}; name a branch or commit"
            )
        case EntryNotFoundError():
            return Refused("SourceNotFound", f"{source}: a file that the hub lists is not there: {_line(error)}")
        case HfHubHTTPError() if error.response.status_code in {401, 403}:
            return Refused(
                "SourceForbidden",
                f"the hub answered {error.response.status_code} for {source} {token}: {give} to one that may read",
            )
        case HfHubHTTPError() if error.response.status_code == TOO_MANY_REQUESTS:
            return Refused(
                "SourceUnreachable",
                f"the hub answers 429 (too many requests) for {source} {token}; {give} for a higher limit, or wait",
                retryable=True,
            )
        case HfHubHTTPError() if error.response.status_code < SERVER_ERRORS:
            return Refused("SourceNotFound", f"the hub answered {error.response.status_code} for {source}")
        case HFValidationError():
            return Refused("SourceInvalid", f"{source}: {_line(error)}")
        case OfflineModeIsEnabled():
            return Refused(
                "SourceUnreachable", f"HF_HUB_OFFLINE forbids to ask the hub for {source}; unset it", retryable=True
            )
    return Refused(
        "SourceUnreachable",
        f"cannot read {source} from the hub ({type(error).__name__}: {_line(error)}); "
        f"check HF_ENDPOINT, proxy and network",
        retryable=True,
    )


def _line(error: BaseException) -> str:
    """The first line of an error's text, short enough for a status message."""
    return (str(error).strip().splitlines() or ["no details"])[0][:200]
