"""What the host tells the device before a step: changed page records, and pages to copy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class RecordUpdates:
    """New values for the device's page records: int32 arrays of equal length, u32 as bit patterns."""

    pages: npt.NDArray[np.int32]
    tags: npt.NDArray[np.int32]
    places: npt.NDArray[np.int32]
    writers: npt.NDArray[np.int32]

    @property
    def empty(self) -> bool:
        """Whether no page changed."""
        return len(self.pages) == 0


@dataclass(frozen=True)
class PageCopy:
    """The first `tokens` slots of `source`, in all layers, go to `target`."""

    source: int
    target: int
    tokens: int


@dataclass(frozen=True)
class DeviceUpdates:
    """What the device must do before the next step: first write the records, then copy."""

    records: RecordUpdates
    copies: tuple[PageCopy, ...] = ()
