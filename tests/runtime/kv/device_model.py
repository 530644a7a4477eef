"""A device without a device: page records as the kernels keep them, and for every slot who may read what from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo_kernels.formats.place import fill_of, logical_of
from octavo_runtime.kv.holding import Holding
from octavo_runtime.kv.updates import DeviceUpdates

Content = tuple[str, tuple[int, ...]]
"""What keys and values are a function of: the salt, and all tokens up to and with the slot's own."""


@dataclass
class DeviceModel:
    """Records and contents of `num_pages` pages; refuses the stores that the KV-write kernel refuses."""

    num_pages: int
    page_size: int
    tags: list[int] = field(init=False)
    writers: list[int] = field(init=False)
    logical: list[int] = field(init=False)
    fill: list[int] = field(init=False)
    slots: dict[tuple[int, int], Content] = field(default_factory=dict)
    tainted: set[int] = field(default_factory=set)
    """Pages that were trusted no more, or hold what was computed from such a page."""

    def __post_init__(self) -> None:
        self.tags = [0] + [1] * (self.num_pages - 1)
        self.writers, self.logical, self.fill = [0] * self.num_pages, [0] * self.num_pages, [0] * self.num_pages

    def apply(self, updates: DeviceUpdates) -> None:
        """Records first, then copies."""
        records = updates.records
        for index, page in enumerate(records.pages.tolist()):
            self.tags[page] = int(records.tags[index]) % 2**32
            self.writers[page] = int(records.writers[index])
            self.logical[page] = logical_of(int(records.places[index]))
            self.fill[page] = fill_of(int(records.places[index]))
            if self.tags[page] % 2 == 0 and self.fill[page] == 0:
                self.tainted.discard(page)
        before = dict(self.slots)
        for copy in updates.copies:
            for slot in range(copy.tokens):
                self.slots[copy.target, slot] = before[copy.source, slot]
            if copy.source in self.tainted:
                self.tainted.add(copy.target)

    def write(self, holding: Holding, salt: str, tokens: list[int], start: int, end: int) -> None:
        """Store tokens `start` to `end`; AssertionError where the kernel would refuse."""
        for position in range(start, end):
            page, tag = list(holding.pairs())[position // self.page_size]
            slot = position % self.page_size
            assert self.tags[page] == tag, "the device knows another tag"
            assert self.writers[page] % 2**32 == holding.nonce, "the page is not this request's to write"
            assert self.fill[page] <= slot, "pages are append-only"
            self.slots[page, slot] = (salt, tuple(tokens[: position + 1]))
            if self.tainted.intersection(holding.pages):
                self.tainted.add(page)
        for page in holding.pages[start // self.page_size : -(-end // self.page_size)]:
            first = holding.pages.index(page) * self.page_size
            self.fill[page] = max(self.fill[page], min(end - first, self.page_size))

    def read(self, page: int, slot: int) -> Content | None:
        """What a read of the slot gives; None where nothing was ever stored."""
        return self.slots.get((page, slot))

    def holds(self, holding: Holding, salt: str, tokens: list[int], end: int) -> bool:
        """Whether `holding` reads exactly its own first `end` tokens, from pages of the right tag."""
        pairs = list(holding.pairs())
        if any(self.tags[page] != tag or self.logical[page] != index for index, (page, tag) in enumerate(pairs)):
            return False
        places = ((pairs[i // self.page_size][0], i % self.page_size) for i in range(end))
        return all(self.read(*place) == (salt, tuple(tokens[: i + 1])) for i, place in enumerate(places))
