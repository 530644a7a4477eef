"""How a checkpoint gets into a pod: image volume, claim, or a fetch from a hub before the server starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo_operator.api.source import HubSource, ImageSource, Source, VolumeSource

MODEL_DIRECTORY = "/models/model"
VOLUME_NAME = "model"
TOKEN_KEY = "token"
"""Key of the hub's access token in spec.model.secretRef."""


@dataclass(frozen=True)
class CheckpointMount:
    """The pod's volumes and the containers' mounts that bring the checkpoint to `MODEL_DIRECTORY`."""

    volumes: tuple[Mapping[str, Any], ...]
    mounts: tuple[Mapping[str, Any], ...]
    fetch: str | None
    """Hub source that an init container copies into the volume; None when it is there already."""


def mount_of(source: Source) -> CheckpointMount:
    """Volumes and mounts for a serving pod."""
    mount: dict[str, Any] = {"name": VOLUME_NAME, "mountPath": MODEL_DIRECTORY, "readOnly": True}
    match source:
        case ImageSource(reference):
            image = {"reference": reference, "pullPolicy": "IfNotPresent"}
            return CheckpointMount(({"name": VOLUME_NAME, "image": image},), (mount,), None)
        case VolumeSource(claim, path):
            volume = {"name": VOLUME_NAME, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
            return CheckpointMount((volume,), ({**mount, **({"subPath": path} if path else {})},), None)
        case HubSource():
            return CheckpointMount(({"name": VOLUME_NAME, "emptyDir": {}},), (mount,), str(source))


def hub_token(source: Source, secret_name: str | None) -> list[dict[str, Any]]:
    """HF_TOKEN for containers that talk to the hub."""
    if not isinstance(source, HubSource) or secret_name is None:
        return []
    reference = {"name": secret_name, "key": TOKEN_KEY}
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}}]


def pull_secrets(source: Source, secret_name: str | None) -> Sequence[Mapping[str, str]]:
    """Pull secrets that a model image needs."""
    return [{"name": secret_name}] if isinstance(source, ImageSource) and secret_name is not None else []
