"""How a checkpoint stores its weights: the number format, its group size, and how many weights a packed tensor holds.

Two witnesses must agree: the markers in config.json (`quantization_config`) or hf_quant_config.json, and the dtypes of
the tensors themselves. Layouts and markers: compressed-tensors (pack-quantized, nvfp4-pack-quantized,
float-quantized), ModelOpt, DeepSeek FP8 blocks, GPTQ, AWQ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from octavo_runtime.contract.facts import CheckpointFormat
from octavo_runtime.contract.refused import Refused
from octavo_runtime.loading.architecture import Config, invalid, parse_object
from octavo_runtime.loading.files import CheckpointFiles
from octavo_runtime.loading.headers import TensorHeader, corrupt
from octavo_runtime.loading.naming import Placed, is_auxiliary

MODELOPT_CONFIG = "hf_quant_config.json"
MODELOPT_CONFIG_LIMIT_BYTES = 4_000_000

_PACKED_WORDS = frozenset({"weight_packed", "qweight"})
"""Leaves that hold eight four-bit weights in each 32-bit word."""


class Packing(StrEnum):
    """Layout of the weights of one linear layer."""

    PLAIN = "plain"
    FP8_BLOCK = "FP8 with block scales"
    FP8_TENSOR = "FP8 with one scale per tensor or channel"
    CT_INT4 = "compressed-tensors pack-quantized INT4"
    GPTQ_INT4 = "GPTQ INT4"
    AWQ_INT4 = "AWQ INT4"
    CT_NVFP4 = "compressed-tensors NVFP4"
    MODELOPT_NVFP4 = "ModelOpt NVFP4"


@dataclass(frozen=True)
class StoredFormat:
    """Format of a set of linear layers."""

    format: CheckpointFormat
    packing: Packing
    group_size: int | None
    """Weights along K that share a scale; None for unquantised weights and for one scale per tensor or channel."""


_PLAIN = {"BF16": CheckpointFormat.BF16, "F16": CheckpointFormat.FP16, "F32": CheckpointFormat.FP32}


@dataclass(frozen=True)
class Quantisation:
    """The markers: who quantised, to how many bits, in groups of how many weights."""

    method: str
    bits: int | None = None
    kind: str | None = None
    """`int` or `float` where the marker says so."""
    group_size: int | None = None
    where: str = "config.json: quantization_config"


def logical_elements(placed: Placed) -> int:
    """Parameters that a tensor stands for: 0 for scales, 8 per i32 and 2 per byte of packed four-bit weights."""
    leaf, tensor = placed.leaf, placed.tensor
    if is_auxiliary(leaf):
        return 0
    if leaf in _PACKED_WORDS and tensor.dtype in {"I32", "U32"}:
        return tensor.elements * 8
    if tensor.dtype == "U8":
        return tensor.elements * 2
    return tensor.elements


def quantisation_of(files: CheckpointFiles, config: Config) -> Quantisation | None:
    """The checkpoint's markers, None when it has none; raises Refused naming the field."""
    if config.has("quantization_config"):
        return _from_config(config.section("quantization_config"))
    if config.has("text_config") and config.section("text_config").has("quantization_config"):
        return _from_config(config.section("text_config").section("quantization_config"))
    size = files.sizes().get(MODELOPT_CONFIG)
    if size is None:
        return None
    if size > MODELOPT_CONFIG_LIMIT_BYTES:
        raise invalid(f"{MODELOPT_CONFIG}: {size} bytes are more than the limit of {MODELOPT_CONFIG_LIMIT_BYTES}")
    return _modelopt(parse_object(files.read(MODELOPT_CONFIG, 0, size), MODELOPT_CONFIG).section("quantization"))


def _from_config(section: Config) -> Quantisation:
    method = section.values.get("quant_method")
    where = section.path
    match method:
        case "compressed-tensors":
            return _compressed_tensors(section)
        case "modelopt" | "modelopt_fp4" | "modelopt_fp8":
            return _modelopt(section)
        case "fp8":
            block = section.values.get("weight_block_size")
            if block is None:
                return Quantisation("fp8", bits=8, kind="float", where=where)
            match block:
                case [int(), int() as along_k] if along_k > 0:
                    return Quantisation("fp8", bits=8, kind="float", group_size=along_k, where=where)
            raise invalid(f"{where}: weight_block_size must be two positive integers, got {block!r}")
        case "gptq" | "awq":
            bits = section.positive("bits", "w_bit")
            group = section.positive("group_size", "q_group_size")
            return Quantisation(str(method), bits=bits, kind="int", group_size=group, where=where)
    raise _unsupported(f"{where}: quant_method {method!r} is not one that Octavo reads")


def _compressed_tensors(section: Config) -> Quantisation:
    groups = section.section("config_groups")
    if len(groups.values) != 1:
        raise _unsupported(f"{groups.path} has {len(groups.values)} schemes, Octavo reads checkpoints with one")
    weights = groups.section(next(iter(groups.values))).section("weights")
    group: int | None = None
    if weights.has("group_size"):
        group = weights.positive("group_size")
    elif weights.has("block_structure"):
        match weights.values["block_structure"]:
            case [int(), int() as along_k] if along_k > 0:
                group = along_k
            case other:
                raise invalid(f"{weights.path}: block_structure must be two positive integers, got {other!r}")
    kind = weights.values.get("type")
    return Quantisation(
        "compressed-tensors",
        bits=weights.positive("num_bits"),
        kind=kind if isinstance(kind, str) else None,
        group_size=group,
        where=weights.path,
    )


def _modelopt(section: Config) -> Quantisation:
    match section.values.get("quant_algo"):
        case "NVFP4":
            group = section.positive("group_size", default=16)
            return Quantisation("modelopt", bits=4, kind="float", group_size=group, where=section.path)
        case "FP8":
            return Quantisation("modelopt", bits=8, kind="float", where=section.path)
        case other:
            raise _unsupported(f"{section.path}: quant_algo {other!r} is not one that Octavo reads")


def stored_format_of(weights: Iterable[Placed], quantisation: Quantisation | None) -> StoredFormat:
    """The one format of `weights`, the tensors of the layers in question.

    Raises Refused `FormatUnsupported` when they are of several formats or of one that Octavo does not read, and
    `ConfigInvalid` when the markers and the tensors contradict each other.
    """
    example: dict[str, TensorHeader] = {}
    scales: dict[str, TensorHeader] = {}
    for placed in weights:
        if not is_auxiliary(placed.leaf):
            example.setdefault(placed.tensor.dtype, placed.tensor)
        elif placed.leaf == "weight_scale":
            scales[placed.tensor.name] = placed.tensor
    if len(example) != 1:
        shown = ", ".join(f"{t.name} is {t.dtype}" for t in list(example.values())[:3]) or "none was found"
        raise _unsupported(f"weights of one format are needed for all layers of a kind: {shown}")
    tensor = next(iter(example.values()))
    if tensor.dtype in _PLAIN:
        return StoredFormat(_PLAIN[tensor.dtype], Packing.PLAIN, None)
    if quantisation is None:
        raise invalid(f"{tensor.name} is stored as {tensor.dtype} but nothing in config.json says how to read it")
    found = _packed(tensor, quantisation)
    if found.group_size is not None and found.packing is Packing.CT_INT4:
        _check_groups(tensor, scales, found.group_size)
    return found


def _packed(tensor: TensorHeader, quantisation: Quantisation) -> StoredFormat:
    group = quantisation.group_size
    match (quantisation.method, quantisation.kind, quantisation.bits, tensor.dtype):
        case ("compressed-tensors", "int", 4, "I32"):
            packing = Packing.CT_INT4
        case ("gptq", _, 4, "I32"):
            packing = Packing.GPTQ_INT4
        case ("awq", _, 4, "I32"):
            packing = Packing.AWQ_INT4
        case ("compressed-tensors", "float", 4, "U8") if group == 16:
            return StoredFormat(CheckpointFormat.NVFP4, Packing.CT_NVFP4, group)
        case ("modelopt", "float", 4, "U8"):
            return StoredFormat(CheckpointFormat.NVFP4, Packing.MODELOPT_NVFP4, group)
        case (_, "float", 8, "F8_E4M3"):
            packing = Packing.FP8_TENSOR if group is None else Packing.FP8_BLOCK
            return StoredFormat(CheckpointFormat.FP8, packing, group)
        case _:
            raise _unsupported(
                f"{tensor.name} is {tensor.dtype} and {quantisation.where} says {quantisation.method}, "
                f"{quantisation.bits} bits, {quantisation.kind}, group {group}: not a combination that Octavo reads"
            )
    if group is None:
        raise _unsupported(f"{quantisation.where} has no group_size: INT4 needs a scale per group of weights")
    return StoredFormat(CheckpointFormat.INT4, packing, group)


def _check_groups(packed: TensorHeader, scales: Mapping[str, TensorHeader], group: int) -> None:
    """The scale's shape must be the packed weight's divided by the group size of the markers."""
    scale = scales.get(packed.name.removesuffix("packed") + "scale")
    if scale is None:
        raise corrupt(packed.file, f"{packed.name} has no weight_scale beside it")
    groups = -(-packed.shape[-1] * 8 // group) if packed.shape else 0
    if not scale.shape or scale.shape[-1] != groups:
        raise invalid(
            f"group_size {group} gives {packed.name} {groups} scales per row, {scale.name} has the shape "
            f"{list(scale.shape)}"
        )


def _unsupported(message: str) -> Refused:
    return Refused(
        "FormatUnsupported",
        f"{message}; use the model in BF16, FP8 (DeepSeek blocks), INT4 (compressed-tensors pack-quantized) or NVFP4",
    )
