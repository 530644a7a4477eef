"""Device storage: as many bytes as the contract says, layers are views of one allocation, copies are checked."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.catalogue import operations_for
from octavo_kernels.device import Device
from octavo_kernels.formats.place import place_of
from octavo_kernels.reference.digest import digest_pages as reference_digest
from octavo_kernels.registry import Formats
from octavo_runtime.contract.facts import ModelFacts
from octavo_runtime.contract.footprint import page_bytes
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import KvFormat, KvScaling
from octavo_runtime.kv.cache import KvCache
from octavo_runtime.kv.holding import Nonces
from octavo_runtime.kv.manager import KvManager
from octavo_runtime.kv.pool import PagePool
from octavo_runtime.kv.prefix import PrefixKey
from octavo_runtime.kv.updates import DeviceUpdates, PageCopy, RecordUpdates
from tests.contract.models import KIMI_K26, QWEN3_30B

CPU = torch.device("cpu")
DIGEST = operations_for(Device.cpu(), Formats()).digest_pages
PAGES, PAGE_SIZE = 6, 16
GQA = QWEN3_30B.model_copy(
    update={"layers": 3, "attention": QWEN3_30B.attention.model_copy(update={"kv_heads": 2, "head_dim": 8})}
)
MLA = KIMI_K26.model_copy(update={"layers": 2})
NO_RECORDS = PagePool(2, PAGE_SIZE).take_updates()
CASES = [
    pytest.param(facts, kv, scaling, id=f"{facts.attention.kind}-{kv}-{scaling}")
    for facts in (GQA, MLA)
    for kv, scaling in (
        (KvFormat.BF16, KvScaling.PER_TENSOR),
        (KvFormat.FP8, KvScaling.PER_TENSOR),
        (KvFormat.FP8, KvScaling.PER_TOKEN_HEAD),
    )
]


def cache_of(facts: ModelFacts, kv: KvFormat, scaling: KvScaling, pages: int = PAGES) -> KvCache:
    return KvCache.allocate(facts, ParallelLayout.of(facts, 1), kv, pages, PAGE_SIZE, CPU, scaling)


def filled_with_noise(cache: KvCache, seed: int = 0) -> KvCache:
    generator = torch.Generator().manual_seed(seed)
    for planes in (cache.storage, cache.scales):
        if planes is not None:
            data = planes.view(torch.uint8)
            data.copy_(torch.randint(0, 120, data.shape, dtype=torch.uint8, generator=generator))
    return cache


def page_bits(cache: KvCache, page: int, slots: slice) -> list[torch.Tensor]:
    planes = [p for p in (cache.storage, cache.scales) if p is not None]
    return [p.view(torch.uint8).view(len(p), PAGES, PAGE_SIZE, -1)[:, page, slots].clone() for p in planes]


def equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize(("facts", "kv", "scaling"), CASES)
def test_storage_is_what_the_contract_says(facts: ModelFacts, kv: KvFormat, scaling: KvScaling) -> None:
    one = page_bytes(facts, kv, ParallelLayout.of(facts, 1), PAGE_SIZE, scaling)
    assert cache_of(facts, kv, scaling).storage_bytes == PAGES * one


@pytest.mark.parametrize(("facts", "kv", "scaling"), CASES)
def test_all_layers_are_views_of_one_allocation(facts: ModelFacts, kv: KvFormat, scaling: KvScaling) -> None:
    cache = cache_of(facts, kv, scaling)
    assert cache.num_layers == facts.layers
    for layer in range(facts.layers):
        for part in cache.payload(layer):
            if part is not None:
                assert part.is_contiguous()
                assert part.untyped_storage().data_ptr() == cache.storage.untyped_storage().data_ptr()
    assert bool(cache.layers) != bool(cache.mla_layers)
    starts = {part.data_ptr() for layer in range(facts.layers) for part in cache.payload(layer) if part is not None}
    assert len(starts) == len(cache.storage)


def test_scales_are_scalars_of_one_or_stand_beside_their_tokens() -> None:
    plain = cache_of(GQA, KvFormat.FP8, KvScaling.PER_TENSOR).layers[0]
    assert (plain.k_scale.ndim, float(plain.k_scale), float(plain.v_scale)) == (0, 1.0, 1.0)
    assert cache_of(GQA, KvFormat.BF16, KvScaling.PER_TOKEN_HEAD).layers[0].k_scale.ndim == 0
    assert cache_of(GQA, KvFormat.FP8, KvScaling.PER_TOKEN_HEAD).layers[2].v_scale.shape == (PAGES, PAGE_SIZE, 2)
    assert cache_of(MLA, KvFormat.FP8, KvScaling.PER_TOKEN_HEAD).mla_layers[1].scale.shape == (PAGES, PAGE_SIZE)
    assert cache_of(MLA, KvFormat.FP8, KvScaling.PER_TENSOR).mla_layers[1].rows.shape == (PAGES, PAGE_SIZE, 576)


@settings(max_examples=15, deadline=None)
@given(
    case=st.sampled_from([case.values for case in CASES]),
    ends=st.permutations(range(1, PAGES)),
    tokens=st.lists(st.integers(1, PAGE_SIZE), min_size=2, max_size=2),
)
def test_a_copy_moves_the_first_tokens_of_every_layer_and_nothing_else(
    case: tuple[ModelFacts, KvFormat, KvScaling], ends: list[int], tokens: list[int]
) -> None:
    cache = filled_with_noise(cache_of(*case))
    copies = (PageCopy(ends[0], ends[1], tokens[0]), PageCopy(ends[2], ends[3], tokens[1]))
    whole = slice(None)
    before = {page: page_bits(cache, page, whole) for page in range(PAGES)}
    wrong = cache.apply(DeviceUpdates(NO_RECORDS, copies), DIGEST)
    assert wrong.tolist() == [0, 0]
    assert wrong.dtype == torch.int32
    for copy in copies:
        first, rest = slice(copy.tokens), slice(copy.tokens, None)
        assert equal(page_bits(cache, copy.target, first), [bits[:, first] for bits in before[copy.source]])
        assert equal(page_bits(cache, copy.target, rest), [bits[:, rest] for bits in before[copy.target]])
    for page in set(range(PAGES)) - {copy.target for copy in copies}:
        assert equal(page_bits(cache, page, whole), before[page])


def test_a_page_that_is_source_and_target_gives_its_old_content_and_no_alarm() -> None:
    cache = filled_with_noise(cache_of(GQA, KvFormat.FP8, KvScaling.PER_TOKEN_HEAD))
    old = page_bits(cache, 1, slice(None))
    wrong = cache.apply(DeviceUpdates(NO_RECORDS, (PageCopy(1, 2, 16), PageCopy(3, 1, 16))), DIGEST)
    assert wrong.tolist() == [0, 0]
    assert equal(page_bits(cache, 2, slice(None)), old)


@pytest.mark.parametrize(("facts", "kv", "scaling"), CASES)
def test_a_copy_that_arrives_damaged_is_named(facts: ModelFacts, kv: KvFormat, scaling: KvScaling) -> None:
    cache = filled_with_noise(cache_of(facts, kv, scaling))
    calls = 0

    def damaging(
        *, k_pages: torch.Tensor, v_pages: torch.Tensor | None, pages: torch.Tensor, fill: torch.Tensor
    ) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:  # after the first tensor's copy: one bit of the last layer's part of page 4, in its slot 2
            k_pages.view(-1, PAGES, *k_pages.shape[1:])[-1, 4, 2, -1] ^= 1
        return reference_digest(k_pages=k_pages, v_pages=v_pages, pages=pages, fill=fill)

    copies = (PageCopy(1, 2, 5), PageCopy(3, 4, 3), PageCopy(1, 5, 16))
    assert cache.apply(DeviceUpdates(NO_RECORDS, copies), damaging).tolist() == [0, 1, 0]


def test_a_fork_reads_the_parents_tokens_after_the_updates_are_applied() -> None:
    cache = filled_with_noise(cache_of(GQA, KvFormat.BF16, KvScaling.PER_TENSOR))
    kv = KvManager(PagePool(PAGES, PAGE_SIZE), Nonces(seed=1), None)
    chain = kv.chain(list(range(20)), PrefixKey())
    parent = kv.start(kv.match(chain, 20))
    kv.extend(parent, 20)
    kv.commit(parent, chain, 0, 20)
    cache.apply(kv.take_updates(), DIGEST)
    child = kv.fork(parent, chain, 19)
    assert cache.apply(kv.take_updates(), DIGEST).tolist() == [0]
    assert cache.records.place[child.pages].tolist() == [place_of(0, 16), place_of(1, 3)]
    assert cache.records.writer[child.pages[0]] == -1
    assert equal(page_bits(cache, child.pages[1], slice(3)), page_bits(cache, parent.pages[1], slice(3)))


def test_records_change_only_where_the_allocator_says() -> None:
    cache, pool = cache_of(GQA, KvFormat.BF16, KvScaling.PER_TENSOR), PagePool(PAGES, PAGE_SIZE)
    assert cache.records.tag.tolist() == pool.records().tags.tolist()
    updates: RecordUpdates = pool.take_updates()
    assert cache.apply(DeviceUpdates(updates), DIGEST).shape == (0,)
    kv = KvManager(pool, Nonces(seed=5), None)
    holding = kv.start(kv.match(kv.chain([1], PrefixKey()), 1))
    kv.extend(holding, 40)
    cache.apply(kv.take_updates(), DIGEST)
    assert cache.records.tag.tolist() == [0, 2, 2, 2, 1, 1]
    assert cache.records.place.tolist() == [0, place_of(0, 0), place_of(1, 0), place_of(2, 0), 0, 0]
    assert {word % 2**32 for word in cache.records.writer[1:4].tolist()} == {holding.nonce}


def test_touching_every_byte_leaves_an_empty_cache() -> None:
    cache = filled_with_noise(cache_of(MLA, KvFormat.FP8, KvScaling.PER_TOKEN_HEAD))
    cache.commit()
    assert not any(bits.any() for page in range(PAGES) for bits in page_bits(cache, page, slice(None)))


def test_a_pool_without_a_page_beside_the_null_page_is_refused() -> None:
    with pytest.raises(ValueError, match="needs at least 3096 bytes for the NULL page and one page of 16"):
        cache_of(GQA, KvFormat.FP8, KvScaling.PER_TENSOR, pages=1)
