"""Ask a served model something over HTTP."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from e2e.kube import Kube, eventually


class ChatError(Exception):
    """The server answered with an error, or not at all."""


def chat(base_url: str, model: str, question: str, *, max_tokens: int = 64, timeout_seconds: float = 60) -> Any:
    """The whole answer document of `POST /v1/chat/completions`, greedy; raises ChatError."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{base_url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_seconds) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise ChatError(f"HTTP {error.code}: {error.read().decode(errors='replace')[:500]}") from error
    except (OSError, ValueError) as error:
        raise ChatError(str(error)) from error


@contextmanager
def service_url(kube: Kube, service: str, namespace: str, *, direct: bool) -> Iterator[str]:
    """A URL of the Service that takes connections from this machine: its cluster address where routes lead there, else
    a port-forward. A Service answers up to a second after its pods are Ready: kube-proxy gathers changes."""
    if direct:
        found = kube.get("service", service, namespace)
        assert found is not None, f"no Service {service}"
        host, port = found["spec"]["clusterIP"], int(found["spec"]["ports"][0]["port"])
        eventually(f"a connection to the Service {service}", lambda: _connects(host, port), 20)
        yield f"http://{host}:{port}"
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [str(kube.kubectl), f"--kubeconfig={kube.kubeconfig}", "port-forward", "-n", namespace]
    forward = subprocess.Popen([*argv, f"service/{service}", f"{port}:80"], stdout=subprocess.DEVNULL)
    try:
        eventually(f"port-forward to {service}", lambda: _connects("127.0.0.1", port), 20)
        yield f"http://127.0.0.1:{port}"
    finally:
        forward.terminate()
        try:
            forward.wait(timeout=10)
        except subprocess.TimeoutExpired:
            forward.kill()


def _connects(host: str, port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(2)
        return client.connect_ex((host, port)) == 0
