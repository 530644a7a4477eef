"""Checkpoints made for tests: real headers over data that takes no disk space (sparse files)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from octavo_runtime.loading.headers import DTYPE_BITS

Tensor = tuple[str, str, tuple[int, ...]]
"""Name, safetensors dtype, shape."""


def header_of(tensors: Iterable[Tensor]) -> tuple[dict[str, dict[str, object]], int]:
    """A safetensors header, and the number of data bytes that it describes."""
    header: dict[str, dict[str, object]] = {}
    end = 0
    for name, dtype, shape in tensors:
        begin, end = end, end + math.prod(shape) * DTYPE_BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    return header, end


def write_safetensors(path: Path, header: Mapping[str, object], data_bytes: int) -> None:
    """Length, header and `data_bytes` zeros that occupy no disk."""
    raw = json.dumps(header, separators=(",", ":")).encode()
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + data_bytes)


def write_checkpoint(directory: Path, config: Mapping[str, object], tensors: Iterable[Tensor], shards: int = 1) -> Path:
    """A checkpoint in Hugging Face layout, with an index when it has more than one shard; returns `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    everything = list(tensors)
    share = -(-len(everything) // shards)
    weight_map: dict[str, str] = {}
    for number in range(shards):
        name = "model.safetensors" if shards == 1 else f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = everything[number * share : (number + 1) * share]
        write_safetensors(directory / name, *header_of(part))
        weight_map.update((tensor[0], name) for tensor in part)
    if shards > 1:
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def linear(name: str, out_features: int, in_features: int, dtype: str = "BF16") -> list[Tensor]:
    """An unquantised linear layer."""
    return [(f"{name}.weight", dtype, (out_features, in_features))]


def linear_ct_int4(name: str, out_features: int, in_features: int, group: int = 32) -> list[Tensor]:
    """compressed-tensors pack-quantized INT4."""
    return [
        (f"{name}.weight_packed", "I32", (out_features, in_features // 8)),
        (f"{name}.weight_scale", "BF16", (out_features, in_features // group)),
        (f"{name}.weight_shape", "I64", (2,)),
    ]


def linear_fp8_block(name: str, out_features: int, in_features: int) -> list[Tensor]:
    """DeepSeek FP8 with 128 x 128 blocks."""
    blocks = (-(-out_features // 128), -(-in_features // 128))
    return [
        (f"{name}.weight", "F8_E4M3", (out_features, in_features)),
        (f"{name}.weight_scale_inv", "F32", blocks),
    ]


def linear_ct_nvfp4(name: str, out_features: int, in_features: int) -> list[Tensor]:
    """compressed-tensors NVFP4."""
    return [
        (f"{name}.weight_packed", "U8", (out_features, in_features // 2)),
        (f"{name}.weight_scale", "F8_E4M3", (out_features, in_features // 16)),
        (f"{name}.weight_global_scale", "F32", (1,)),
        (f"{name}.input_global_scale", "F32", (1,)),
    ]


def linear_modelopt_nvfp4(name: str, out_features: int, in_features: int) -> list[Tensor]:
    """ModelOpt NVFP4."""
    return [
        (f"{name}.weight", "U8", (out_features, in_features // 2)),
        (f"{name}.weight_scale", "F8_E4M3", (out_features, in_features // 16)),
        (f"{name}.weight_scale_2", "F32", ()),
        (f"{name}.input_scale", "F32", ()),
    ]


def linear_gptq(name: str, out_features: int, in_features: int, group: int = 128) -> list[Tensor]:
    """GPTQ INT4, packed along K."""
    groups = in_features // group
    return [
        (f"{name}.qweight", "I32", (in_features // 8, out_features)),
        (f"{name}.qzeros", "I32", (groups, out_features // 8)),
        (f"{name}.scales", "F16", (groups, out_features)),
        (f"{name}.g_idx", "I32", (in_features,)),
    ]


def linear_awq(name: str, out_features: int, in_features: int, group: int = 128) -> list[Tensor]:
    """AWQ INT4, packed along N."""
    groups = in_features // group
    return [
        (f"{name}.qweight", "I32", (in_features, out_features // 8)),
        (f"{name}.qzeros", "I32", (groups, out_features // 8)),
        (f"{name}.scales", "F16", (groups, out_features)),
    ]


INT4_MARKER = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {"weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}}
    },
}
FP8_MARKER = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
NVFP4_MARKER = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
}
