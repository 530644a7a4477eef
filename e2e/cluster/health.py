"""Ask a component whether it is well, and the API server what it knows. Every question has a short time limit."""

import http.client
import json
import socket
import ssl
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from e2e.cluster.components import Component
from e2e.cluster.config import ClusterConfig

TIMEOUT_SECONDS = 3.0


def healthy(component: Component, config: ClusterConfig) -> bool:
    """Whether it says so; a component without a question to ask counts as healthy while it lives."""
    url = component.health_url
    if url is None:
        return True
    if url.startswith("unix:"):
        return _accepts(url.removeprefix("unix:"))
    if url.startswith(config.api_url):
        return _answers(url, _admin_context(config))
    return _answers(url, _unverified() if url.startswith("https:") else None)


@dataclass(frozen=True)
class NodeState:
    """What the API server says of a node."""

    name: str
    ready: bool
    message: str


def nodes(config: ClusterConfig) -> list[NodeState]:
    """The cluster's nodes; none when the API server does not answer."""
    answer = get(config, "/api/v1/nodes")
    items = cast("list[Mapping[str, Mapping[str, object]]]", answer.get("items", []) if answer else [])
    found = []
    for item in items:
        conditions = cast("list[Mapping[str, str]]", item.get("status", {}).get("conditions", []))
        ready = next((condition for condition in conditions if condition["type"] == "Ready"), None)
        is_ready = ready is not None and ready["status"] == "True"
        found.append(NodeState(str(item["metadata"]["name"]), is_ready, ready["message"] if ready else "no condition"))
    return found


def get(config: ClusterConfig, path: str) -> Mapping[str, object] | None:
    """An object of the API server; None when it is not there or cannot be asked."""
    try:
        with _open(f"{config.api_url}{path}", _admin_context(config)) as response:
            found = json.load(response)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _open(url: str, context: ssl.SSLContext | None) -> http.client.HTTPResponse:
    """Straight to the component: a proxy that this machine uses knows nothing of these addresses."""
    secure = [urllib.request.HTTPSHandler(context=context)] if context else []
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), *secure)
    return cast("http.client.HTTPResponse", opener.open(url, timeout=TIMEOUT_SECONDS))


def _answers(url: str, context: ssl.SSLContext | None) -> bool:
    try:
        with _open(url, context) as response:
            return response.status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False


def _accepts(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(TIMEOUT_SECONDS)
        try:
            client.connect(path)
        except OSError:
            return False
    return True


def _admin_context(config: ClusterConfig) -> ssl.SSLContext:
    pki = config.state_dir / "pki"
    try:
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
    except OSError:  # no certificates: no cluster; the question will fail
        return ssl.create_default_context()
    return context


def _unverified() -> ssl.SSLContext:
    """For /healthz of controller-manager and scheduler, which sign for themselves; nothing secret is sent or read."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
