"""PageRecords: what the device knows of each page."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from octavo_runtime.kv.pages import FIRST_FREE_TAG, NULL_PAGE, WRITER_NULL
from octavo_runtime.kv.updates import RecordUpdates


@dataclass(frozen=True)
class PageRecords:
    """What the device knows of each page; all int32 [num_pages] (u32 bit patterns), updated by the allocator only.

    tag: generation, bumped on allocation and on free; odd means free. place: index of the page within its request and
    fill mark, `octavo_kernels.formats.place`; the KV-write operation raises the mark. writer: nonce of the only request
    that may store into it, or WRITER_SHARED / WRITER_NULL.
    """

    tag: torch.Tensor
    place: torch.Tensor
    writer: torch.Tensor

    @classmethod
    def blank(cls, num_pages: int, device: torch.device) -> PageRecords:
        """All pages free, but for the NULL page."""

        def record(value: int) -> torch.Tensor:
            return torch.full((num_pages,), value, dtype=torch.int32, device=device)

        tag = record(FIRST_FREE_TAG)
        tag[NULL_PAGE] = 0
        return cls(tag=tag, place=record(0), writer=record(WRITER_NULL))

    @property
    def nbytes(self) -> int:
        """Bytes of all records."""
        return self.tag.nbytes + self.place.nbytes + self.writer.nbytes

    def apply(self, updates: RecordUpdates) -> None:
        """Write the allocator's changes; ordered before whatever the device is asked to do next.

        Within one life of a page (its tag stays) its place stays too: only the KV write raises a fill mark, so that a
        page which the host takes for full before it is cannot be read as if it were.
        """
        if updates.empty:
            return
        rows = upload(np.stack((updates.pages, updates.tags, updates.places, updates.writers)), self.tag.device)
        pages, (tags, places, writers) = rows[0].long(), rows[1:]
        places = torch.where(self.tag[pages] == tags, self.place[pages], places)
        for record, values in ((self.tag, tags), (self.place, places), (self.writer, writers)):
            record.index_copy_(0, pages, values)


def upload(array: npt.NDArray[np.int32] | npt.NDArray[np.int64], device: torch.device) -> torch.Tensor:
    """The array on the device, without waiting for it: through pinned memory where that matters."""
    tensor = torch.from_numpy(array)
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)
