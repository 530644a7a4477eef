"""Credentials: a pod's service account, else kubeconfig. kopf's watches and our client use the same."""

from __future__ import annotations

import os
from pathlib import Path

import kopf

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
KUBECONFIG_VARIABLE = "KUBECONFIG"


class LoginError(Exception):
    """There is no credential; the message says what was looked for."""


def find_credentials(settings: kopf.OperatorSettings) -> kopf.ConnectionInfo:
    """Read the credential anew: bound tokens are replaced on disk about every hour. Raises LoginError."""
    in_cluster = _service_account()
    if in_cluster is not None:
        return in_cluster
    try:
        found = kopf.login_with_kubeconfig(settings=settings)
    except (OSError, KeyError, kopf.LoginError) as error:
        raise LoginError(f"kubeconfig cannot be used: {error}") from error
    if found is None:
        raise LoginError(
            f"no credential: {SERVICE_ACCOUNT} is not there and neither {KUBECONFIG_VARIABLE} nor ~/.kube/config is set"
        )
    return found


def _service_account() -> kopf.ConnectionInfo | None:
    """By address, not by name: `kubernetes.default.svc` needs cluster DNS, which this way may be down."""
    token = SERVICE_ACCOUNT / "token"
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not token.exists():
        return None
    address = f"[{host}]" if ":" in host else host
    return kopf.ConnectionInfo(
        server=f"https://{address}:{port}",
        ca_path=str(SERVICE_ACCOUNT / "ca.crt"),
        token=token.read_text(encoding="utf-8").strip(),
    )
