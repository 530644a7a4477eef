"""Where a checkpoint comes from, taken apart."""

from __future__ import annotations

from dataclasses import dataclass

HUB, IMAGE, VOLUME = "hf://", "oci://", "pvc://"


@dataclass(frozen=True)
class HubSource:
    """A repository of a model hub; without a revision its default branch."""

    repository: str
    revision: str | None

    def __str__(self) -> str:
        return f"{HUB}{self.repository}" + (f"@{self.revision}" if self.revision else "")


@dataclass(frozen=True)
class ImageSource:
    """An OCI image whose root holds the checkpoint; mounted as an image volume."""

    reference: str

    def __str__(self) -> str:
        return f"{IMAGE}{self.reference}"

    def pinned(self, image_ref: str) -> ImageSource:
        """The same image by digest. `image_ref` is what a kubelet reports: `NAME@sha256:...`, perhaps another name."""
        _, at, digest = image_ref.rpartition("@")
        if not at or not digest.startswith("sha256:") or "@" in self.reference:
            return self
        name, colon, tag = self.reference.rpartition(":")
        return ImageSource(f"{name if colon and '/' not in tag else self.reference}@{digest}")


@dataclass(frozen=True)
class VolumeSource:
    """A directory on a PersistentVolumeClaim."""

    claim: str
    path: str
    """Relative to the volume's root; empty for the root itself."""

    def __str__(self) -> str:
        return f"{VOLUME}{self.claim}" + (f"/{self.path}" if self.path else "")


Source = HubSource | ImageSource | VolumeSource


def parse_source(text: str) -> Source:
    """Take a source apart; raises ValueError for what the CRD's rule rejects as well."""
    if text.startswith(HUB):
        repository, at, revision = text.removeprefix(HUB).partition("@")
        return HubSource(repository, revision if at else None)
    if text.startswith(IMAGE):
        return ImageSource(text.removeprefix(IMAGE))
    if text.startswith(VOLUME):
        claim, _, path = text.removeprefix(VOLUME).partition("/")
        return VolumeSource(claim, path.strip("/"))
    raise ValueError(f"spec.model.source {text!r} is neither hf://, oci:// nor pvc://")
