"""A hub of one repository over HTTP, as `huggingface_hub` speaks to it: for tests, and for the end-to-end cluster.

    python -m tests.hub_server DIR --name org/model --host 0.0.0.0 --port 8088     # then HF_ENDPOINT=http://HOST:8088

Weights are answered the way the real hub does it: the resolve address redirects to another path (the CDN's), with the
size and checksum in `X-Linked-*` headers. Faults are fields of `Behaviour`, which a test may change while it runs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

CHUNK_BYTES = 64 * 1024
LOOPBACK, LOOPBACK_NAME = "127.0.0.1", "localhost"
LFS_SUFFIX = ".safetensors"


@dataclass
class Behaviour:
    """What the server does out of the ordinary."""

    token: str | None = None
    """When set, requests without it are answered as the hub answers for a private repository."""
    gated: bool = False
    failures: list[int] = field(default_factory=list)
    """Statuses that the next requests are answered with, first to last."""
    retry_after: str | None = None
    ignore_ranges: bool = False
    cut_after_bytes: int | None = None
    """Close the connection in the middle of the next large body, once."""
    not_json: bool = False
    """Answer the API with a web page, like a captive portal."""


@dataclass(frozen=True)
class Answered:
    """One request as it was answered."""

    method: str
    path: str
    range: str | None
    status: int
    body_bytes: int


class HubServer:
    """Serves `directory` as repository `name`; `with HubServer(...).running() as hub: hub.endpoint`."""

    def __init__(self, directory: Path, name: str = "test/model", host: str = "127.0.0.1", port: int = 0) -> None:
        self.directory = directory
        self.name = name
        self.behaviour = Behaviour()
        self._answered: list[Answered] = []
        self._in_flight = 0
        self._idle = threading.Condition()
        self.cuts = 0
        self.files = {p.name: p for p in sorted(directory.iterdir()) if p.is_file()}
        self.sha256 = {name: _sha256(path) for name, path in self.files.items()}
        self.commit = hashlib.sha1(json.dumps(self.sha256).encode()).hexdigest()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer((host, port), handler)
        self._server.daemon_threads = True

    @property
    def endpoint(self) -> str:
        """What HF_ENDPOINT must be."""
        host, port = self._server.server_address[:2]
        return f"http://{host if isinstance(host, str) else host.decode()}:{port}"

    @property
    def answered(self) -> list[Answered]:
        """Requests in the order in which their answers ended; a client may know its answer before this list does, so
        answers that are being written are waited for."""
        with self._idle:
            self._idle.wait_for(lambda: self._in_flight == 0, timeout=10)
            return self._answered

    @contextmanager
    def answering(self) -> Iterator[None]:
        """One request, from its head to its note."""
        with self._idle:
            self._in_flight += 1
        try:
            yield
        finally:
            with self._idle:
                self._in_flight -= 1
                self._idle.notify_all()

    def note(self, answered: Answered) -> None:
        """Remember an answer."""
        with self._idle:
            self._answered.append(answered)

    def body_bytes(self, name: str) -> int:
        """Bytes sent so far of file `name`, over all its requests."""
        ends = (f"/{name}", f"/cdn/{self.sha256[name]}")
        return sum(a.body_bytes for a in self.answered if a.method == "GET" and a.path.endswith(ends))

    def serve_forever(self) -> None:
        """Serve until interrupted."""
        self._server.serve_forever()

    @contextmanager
    def running(self) -> Iterator[HubServer]:
        """Serve on a thread of its own for the duration of the block."""
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join(timeout=5)


class _Handler(BaseHTTPRequestHandler):
    hub: ClassVar[HubServer]
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        with self.hub.answering():
            self._answer()

    def do_HEAD(self) -> None:
        with self.hub.answering():
            self._answer()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        behaviour = self.hub.behaviour
        path = unquote(urlsplit(self.path).path)
        if behaviour.failures:
            return self._error(behaviour.failures.pop(0), "", "planned failure")
        if path.startswith("/cdn/"):
            return self._cdn(path.removeprefix("/cdn/"))
        repo = re.escape(self.hub.name)
        api = re.fullmatch(rf"/api/models/{repo}(?:/(revision|tree)/([^/]+))?", path)
        resolve = re.fullmatch(rf"/{repo}/resolve/([^/]+)/(.+)", path)
        if api is None and resolve is None:
            return self._error(404, "RepoNotFound", "Repository not found")
        if behaviour.token and self.headers.get("Authorization") != f"Bearer {behaviour.token}":
            return self._error(401, "RepoNotFound", "Invalid username or password.")
        if behaviour.gated:
            return self._error(403, "GatedRepo", "Access to this model is restricted.")
        revision = (api[2] if api else resolve[1] if resolve else None) or "main"
        if revision not in {"main", self.hub.commit}:
            return self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if api is not None:
            return self._tree() if api[1] == "tree" else self._info()
        assert resolve is not None
        return self._resolve(resolve[2])

    def _entries(self) -> list[dict[str, object]]:
        entries: list[dict[str, object]] = []
        for name, path in self.hub.files.items():
            entry: dict[str, object] = {"name": name, "size": path.stat().st_size, "oid": self.hub.sha256[name][:40]}
            if name.endswith(LFS_SUFFIX):
                lfs = {"sha256": self.hub.sha256[name], "size": path.stat().st_size, "pointerSize": 134}
                entry["lfs"] = lfs
            entries.append(entry)
        return entries

    def _info(self) -> None:
        if self.hub.behaviour.not_json:
            return self._send(200, b"<html>please log in</html>", "text/html")
        siblings = [
            {"rfilename": e["name"], "size": e["size"], "blobId": e["oid"], **({"lfs": e["lfs"]} if "lfs" in e else {})}
            for e in self._entries()
        ]
        info = {"id": self.hub.name, "modelId": self.hub.name, "sha": self.hub.commit, "siblings": siblings}
        return self._send(200, json.dumps(info | {"private": False, "tags": []}).encode(), "application/json")

    def _tree(self) -> None:
        tree = [
            {"type": "file", "path": e["name"], "size": e["size"], "oid": e["oid"]}
            | ({"lfs": {"oid": self.hub.sha256[str(e["name"])], **_mapping(e["lfs"])}} if "lfs" in e else {})
            for e in self._entries()
        ]
        return self._send(200, json.dumps(tree).encode(), "application/json")

    def _resolve(self, name: str) -> None:
        path = self.hub.files.get(name)
        if path is None:
            return self._error(404, "EntryNotFound", "Entry not found")
        digest = self.hub.sha256[name]
        if name.endswith(LFS_SUFFIX):
            self.send_response(302)
            self.send_header("Location", f"http://{self._storage_host()}/cdn/{digest}")
            self.send_header("X-Linked-Etag", f'"{digest}"')
            self.send_header("X-Linked-Size", str(path.stat().st_size))
            self.send_header("X-Repo-Commit", self.hub.commit)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return self._note(302, 0)
        return self._file(path, digest[:40])

    def _storage_host(self) -> str:
        """Another name of this server where there is one, so that clients see another origin as on the real hub."""
        return self.headers.get("Host", "").replace(LOOPBACK, LOOPBACK_NAME)

    def _cdn(self, digest: str) -> None:
        if "Authorization" in self.headers and self.headers.get("Host", "").startswith(LOOPBACK_NAME):
            return self._error(400, "", "a signed address must not be sent a token")
        for name, known in self.hub.sha256.items():
            if known == digest:
                return self._file(self.hub.files[name], digest)
        return self._error(404, "EntryNotFound", "Entry not found")

    def _file(self, path: Path, etag: str) -> None:
        size = path.stat().st_size
        start, end, status = 0, size, 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and not self.hub.behaviour.ignore_ranges:
            start, status = int(asked[1]), 206
            end = min(size, int(asked[2]) + 1) if asked[2] else size
        if start >= size > 0:
            return self._error(416, "", "Range not satisfiable")
        self.send_response(status)
        self.send_header("Content-Length", str(end - start))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", self.hub.commit)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.end_headers()
        sent = 0 if self.command == "HEAD" else self._body(path, start, end)
        return self._note(status, sent)

    def _body(self, path: Path, start: int, end: int) -> int:
        sent = 0
        with path.open("rb") as file:
            file.seek(start)
            while start + sent < end:
                chunk = file.read(min(CHUNK_BYTES, end - start - sent))
                cut = self.hub.behaviour.cut_after_bytes
                if cut is not None and sent + len(chunk) > cut:
                    self.hub.behaviour.cut_after_bytes = None
                    self.hub.cuts += 1
                    self.close_connection = True
                    return sent
                try:
                    self.wfile.write(chunk)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True
                    return sent
                sent += len(chunk)
        return sent

    def _error(self, status: int, code: str, message: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        if status == HTTPStatus.TOO_MANY_REQUESTS and self.hub.behaviour.retry_after:
            self.send_header("Retry-After", self.hub.behaviour.retry_after)
        self.send_header("Content-Length", "0")
        self.end_headers()
        self._note(status, 0)

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self._note(status, len(body))

    def _note(self, status: int, body_bytes: int) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.note(Answered(self.command, path, self.headers.get("Range"), status, body_bytes))


def _mapping(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return {str(key): item for key, item in value.items()}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Serve a directory until interrupted."""
    parser = argparse.ArgumentParser(description="Serve a directory as a hub repository.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--name", default="test/model", help="repository name (default: %(default)s)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    args = parser.parse_args()
    hub = HubServer(args.directory, args.name, args.host, args.port)
    print(f"hf://{hub.name}@{hub.commit} at {hub.endpoint}", flush=True)
    hub.serve_forever()


if __name__ == "__main__":
    main()
