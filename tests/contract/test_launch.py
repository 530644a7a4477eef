"""What the operator writes into a pod's arguments is what `octavo serve` reads."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_runtime.contract.launch import LaunchFlags
from octavo_runtime.contract.precision import ComputeCapability, KvFormat, WeightFormat

FLAGS = st.builds(
    LaunchFlags,
    model=st.just("/models/model"),
    served_model_name=st.from_regex(r"[a-zA-Z0-9][a-zA-Z0-9._/=-]{0,60}", fullmatch=True),
    weights=st.sampled_from(WeightFormat),
    kv_cache_dtype=st.sampled_from(KvFormat),
    max_model_len=st.integers(1, 2**21),
    max_num_seqs=st.integers(1, 4096),
    kv_cache_memory_bytes=st.integers(1, 2**40),
    page_size=st.sampled_from([16, 32, 64, 128]),
    tensor_parallel_size=st.sampled_from([1, 2, 4, 8]),
    drain_seconds=st.integers(0, 3600),
    expect_compute_capability=st.none() | st.builds(ComputeCapability, st.integers(8, 12), st.integers(0, 9)),
    expect_memory_mib=st.none() | st.integers(1, 10**6),
    port=st.integers(1, 65535),
)


@pytest.fixture(scope="module")
def serve() -> argparse.ArgumentParser:
    """The real parser; importing it imports the runtime."""
    from octavo_runtime.cli.serve import add_arguments

    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    return parser


@given(flags=FLAGS)
def test_every_flag_survives_the_way_through_the_command_line(
    serve: argparse.ArgumentParser, flags: LaunchFlags
) -> None:
    command, *arguments = flags.to_argv()
    args = serve.parse_args(arguments)

    assert command == "serve"
    assert str(args.model) == flags.model
    assert args.served_model_name == flags.served_model_name
    assert args.weights == flags.weights.lower()
    assert args.kv_cache_dtype == flags.kv_cache_dtype.lower()
    for name in (
        "max_model_len",
        "max_num_seqs",
        "kv_cache_memory_bytes",
        "page_size",
        "tensor_parallel_size",
        "drain_seconds",
        "expect_compute_capability",
        "expect_memory_mib",
        "port",
    ):
        assert getattr(args, name) == getattr(flags, name), name


def test_flags_are_rendered_in_a_stable_order_and_absent_ones_left_out() -> None:
    flags = LaunchFlags(
        model="/m",
        served_model_name="tiny",
        weights=WeightFormat.INT4,
        kv_cache_dtype=KvFormat.FP8,
        max_model_len=2048,
        max_num_seqs=8,
        kv_cache_memory_bytes=10**9,
    )
    assert flags.to_argv() == (
        "serve",
        "/m",
        "--served-model-name=tiny",
        "--weights=int4",
        "--kv-cache-dtype=fp8",
        "--max-model-len=2048",
        "--max-num-seqs=8",
        "--kv-cache-memory-bytes=1000000000",
        "--page-size=64",
        "--tensor-parallel-size=1",
        "--drain-seconds=120",
        "--port=8000",
    )
