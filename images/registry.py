"""The part of a registry's HTTP interface that pushing needs.

Source: OCI distribution specification 1.1 (blob upload in one PUT, manifests by tag and digest).
"""

import http.client
import ipaddress
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from images.errors import ImageError
from images.oci import MANIFEST_TYPE, Blob, Image
from images.reference import Reference

DOCKER_MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
TIMEOUT_SECONDS = 60.0
"""Per request; a large layer is written in pieces, each of which restarts the clock."""


@dataclass(frozen=True)
class Registry:
    """One registry, named as in image references."""

    host: str

    @property
    def plain(self) -> bool:
        """Whether it speaks HTTP without TLS: registries on private addresses, such as the cluster's own."""
        name = self.host.partition(":")[0]
        try:
            return ipaddress.ip_address(name).is_private
        except ValueError:
            return name == "localhost"

    def digest(self, image: Reference) -> str | None:
        """The digest of the manifest under that tag; None when there is none."""
        headers = {"Accept": f"{MANIFEST_TYPE}, {DOCKER_MANIFEST_TYPE}"}
        with self._request("HEAD", f"/v2/{image.repository}/manifests/{image.tag}", headers) as response:
            if response.status == http.client.NOT_FOUND:
                return None
            self._expect(response, http.client.OK)
            return response.headers["Docker-Content-Digest"]

    def compressed_bytes(self, image: Reference) -> int:
        """What a node has to pull: the sizes of configuration and layers, as the manifest states them."""
        headers = {"Accept": f"{MANIFEST_TYPE}, {DOCKER_MANIFEST_TYPE}"}
        with self._request("GET", f"/v2/{image.repository}/manifests/{image.tag}", headers) as response:
            self._expect(response, http.client.OK)
            manifest = json.load(response)
        return int(manifest["config"]["size"]) + sum(int(layer["size"]) for layer in manifest["layers"])

    def push(self, image: Image, target: Reference) -> str:
        """Upload what is missing and the manifest; the manifest's digest.

        Raises:
            ImageError: the registry refuses or cannot be reached.
        """
        for blob in (image.layer, image.config):
            if not self._has_blob(target.repository, blob.digest):
                self._upload(target.repository, blob)
        headers = {"Content-Type": image.manifest.media_type}
        path = f"/v2/{target.repository}/manifests/{target.tag}"
        content = image.manifest.content
        with self._request("PUT", path, headers, content) as response:
            self._expect(response, http.client.CREATED)
        return image.manifest.digest

    def delete(self, image: Reference, digest: str) -> None:
        """Remove a manifest; its layers go with the registry's next garbage collection. It may be gone already."""
        with self._request("DELETE", f"/v2/{image.repository}/manifests/{digest}") as response:
            if response.status != http.client.NOT_FOUND:
                self._expect(response, http.client.ACCEPTED)

    def retag(self, image: Reference, tag: str) -> Reference:
        """Give the same manifest another tag; the new reference.

        Raises:
            ImageError: there is no such image, or the registry refuses.
        """
        headers = {"Accept": f"{MANIFEST_TYPE}, {DOCKER_MANIFEST_TYPE}"}
        with self._request("GET", f"/v2/{image.repository}/manifests/{image.tag}", headers) as response:
            self._expect(response, http.client.OK)
            kind, content = response.headers["Content-Type"], response.read()
        path = f"/v2/{image.repository}/manifests/{tag}"
        with self._request("PUT", path, {"Content-Type": kind}, content) as response:
            self._expect(response, http.client.CREATED)
        return Reference(image.host, image.repository, tag)

    def _has_blob(self, repository: str, digest: str) -> bool:
        with self._request("HEAD", f"/v2/{repository}/blobs/{digest}") as response:
            return response.status == http.client.OK

    def _upload(self, repository: str, blob: Blob) -> None:
        with self._request("POST", f"/v2/{repository}/blobs/uploads/", {"Content-Length": "0"}) as response:
            self._expect(response, http.client.ACCEPTED)
            location = urlsplit(response.headers["Location"])
        joint = "&" if location.query else ""
        path = f"{location.path}?{location.query}{joint}digest={blob.digest}"
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(blob.size_bytes)}
        with self._request("PUT", path, headers, blob.content) as response:
            self._expect(response, http.client.CREATED)

    @contextmanager
    def _request(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | Path | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        kind = http.client.HTTPConnection if self.plain else http.client.HTTPSConnection
        connection = kind(self.host, timeout=TIMEOUT_SECONDS)
        try:
            if isinstance(body, Path):
                with body.open("rb") as content:
                    connection.request(method, path, body=content, headers=dict(headers or {}))
            else:
                connection.request(method, path, body=body, headers=dict(headers or {}))
            yield connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise ImageError(
                f"the registry {self.host} cannot be reached ({error}); `make cluster-up` starts it"
            ) from error
        finally:
            connection.close()

    def _expect(self, response: http.client.HTTPResponse, status: int) -> None:
        if response.status != status:
            words = response.read(500).decode(errors="replace")
            raise ImageError(f"the registry {self.host} answered {response.status}, not {status}: {words}")
