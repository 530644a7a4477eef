"""The three kinds of source end in the same served model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.installation import Installation
from e2e.manifests import tiny_moe
from e2e.test_path import ask, wait_ready

pytestmark = pytest.mark.cluster


def test_a_model_on_a_persistent_volume_is_served(
    installed: Installation, fresh_namespace: Callable[[], str], volume_with: Callable[[str, Path], str]
) -> None:
    namespace = fresh_namespace()
    claim = volume_with(namespace, installed.checkpoint)
    installed.kube.apply(tiny_moe(f"pvc://{claim}/{installed.checkpoint.name}"), namespace)
    wait_ready(installed, namespace)
    assert ask(installed, namespace)


def test_a_model_from_a_hub_is_fetched_and_served(
    installed: Installation, fresh_namespace: Callable[[], str], hub: str
) -> None:
    namespace = fresh_namespace()
    engine = {"env": [{"name": "HF_ENDPOINT", "value": hub}]}
    installed.kube.apply(tiny_moe("hf://octavo/tiny-moe", engine=engine), namespace)
    found = wait_ready(installed, namespace)
    assert found["status"]["model"]["revision"]
    assert ask(installed, namespace)
