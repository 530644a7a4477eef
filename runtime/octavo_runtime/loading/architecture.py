"""What config.json says of a model's shape, in one vocabulary for all families."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from octavo_runtime.contract.facts import AttentionFacts, AttentionKind
from octavo_runtime.contract.refused import Refused
from octavo_runtime.loading.files import CONFIG, CheckpointFiles

CONFIG_LIMIT_BYTES = 4_000_000
"""Published configs have a few kilobytes; lists of ignored modules bring some to hundreds."""

DIMENSION_LIMIT = 2**31 - 1


@dataclass(frozen=True)
class Config:
    """A JSON object of config.json with typed access; `path` names it in messages."""

    values: Mapping[str, object]
    path: str = CONFIG

    def has(self, *names: str) -> bool:
        """Whether any of `names` is present and not null."""
        return any(self.values.get(name) is not None for name in names)

    def positive(self, *names: str, default: int | None = None) -> int:
        """The first of `names` that is present, as a positive integer; raises Refused `ConfigInvalid` naming it."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if type(value) is not int or not 1 <= value <= DIMENSION_LIMIT:
                raise invalid(f"{self.path}: {name} must be a positive integer, got {_shown(value)}")
            return value
        if default is not None:
            return default
        raise invalid(f"{self.path}: {' or '.join(names)} is missing")

    def flag(self, name: str, *, default: bool) -> bool:
        """A boolean; raises Refused `ConfigInvalid`."""
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise invalid(f"{self.path}: {name} must be true or false, got {_shown(value)}")
        return value

    def section(self, name: str) -> Config:
        """A nested object; raises Refused `ConfigInvalid` when it is missing or something else."""
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise invalid(f"{self.path}: {name} must be an object, got {_shown(value)}")
        return Config(value, f"{self.path}: {name}")


@dataclass(frozen=True)
class Family:
    """How one architecture's config is spelt."""

    attention: AttentionKind
    expert_count: tuple[str, ...] = ()
    """Names of the field that holds the number of routed experts; empty for a dense model."""
    expert_width: str = ""
    """Name of the field that holds a routed expert's intermediate size."""
    nested: str | None = None
    """Name of the object that holds the language model's fields, for models that also see images."""


@dataclass(frozen=True)
class RoutedExperts:
    """What the config says of the routed experts; which layers have them is read from the tensors."""

    count: int
    per_token: int
    intermediate_size: int


@dataclass(frozen=True)
class Architecture:
    """The language model's shape."""

    name: str
    layers: int
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    attention: AttentionFacts
    experts: RoutedExperts | None
    tied_embeddings: bool
    """Whether the output head is the token embedding; a stored copy then counts for nothing."""


_QWEN_COUNT = ("num_experts", "num_local_experts")
_DEEPSEEK_COUNT = ("n_routed_experts", "num_experts", "num_local_experts")
_DENSE = Family(AttentionKind.GQA)
_QWEN_MOE = Family(AttentionKind.GQA, _QWEN_COUNT, "moe_intermediate_size")
_DEEPSEEK = Family(AttentionKind.MLA, _DEEPSEEK_COUNT, "moe_intermediate_size")

FAMILIES: Mapping[str, Family] = {
    "Qwen3MoeForCausalLM": _QWEN_MOE,
    "MixtralForCausalLM": Family(AttentionKind.GQA, ("num_local_experts", "num_experts"), "intermediate_size"),
    "DeepseekV3ForCausalLM": _DEEPSEEK,
    "DeepseekV32ForCausalLM": _DEEPSEEK,
    "GlmMoeDsaForCausalLM": _DEEPSEEK,
    "KimiK25ForConditionalGeneration": Family(
        AttentionKind.MLA, _DEEPSEEK_COUNT, "moe_intermediate_size", nested="text_config"
    ),
    "LlamaForCausalLM": _DENSE,
    "MistralForCausalLM": _DENSE,
    "Qwen2ForCausalLM": _DENSE,
    "Qwen3ForCausalLM": _DENSE,
}
"""Architectures that can be described. Which of them the bundled runtime serves is `contract.servable`'s business."""


def invalid(message: str) -> Refused:
    """The refusal of a config that contradicts itself or lacks a field."""
    return Refused("ConfigInvalid", f"{message}; compare the file with the model's published one")


def read_config(files: CheckpointFiles) -> tuple[bytes, Config]:
    """config.json, raw and parsed; raises Refused `ConfigMissing` or `ConfigInvalid`."""
    size = files.sizes().get(CONFIG)
    if size is None:
        raise Refused(
            "ConfigMissing",
            f"{files.where} has no {CONFIG}; a checkpoint in Hugging Face layout is needed: {CONFIG}, tokenizer, "
            f"*.safetensors",
        )
    if size > CONFIG_LIMIT_BYTES:
        raise invalid(f"{CONFIG}: {size} bytes are more than the limit of {CONFIG_LIMIT_BYTES}")
    raw = files.read(CONFIG, 0, size)
    return raw, parse_object(raw, CONFIG)


def parse_object(raw: bytes, name: str) -> Config:
    """A JSON object; raises Refused `ConfigInvalid` naming `name`."""
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise invalid(f"{name}: not JSON ({error})") from error
    if not isinstance(values, dict):
        raise invalid(f"{name}: a JSON object is needed, got {_shown(values)}")
    return Config(values, name)


def architecture_of(config: Config) -> Architecture:
    """The model's shape; raises Refused `ArchitectureUnsupported` or `ConfigInvalid` naming the field."""
    names = config.values.get("architectures")
    if not (isinstance(names, list) and names and isinstance(names[0], str)):
        raise invalid(f"{CONFIG}: architectures must be a list that names the model class, got {_shown(names)}")
    name = names[0]
    family = FAMILIES.get(name)
    if family is None:
        raise Refused(
            "ArchitectureUnsupported",
            f"{CONFIG}: architectures names {_shown(name)}, which Octavo does not know; it reads {', '.join(FAMILIES)}",
        )
    text = config.section(family.nested) if family.nested else config
    tied_in = config if config.has("tie_word_embeddings") else text
    return Architecture(
        name=name,
        layers=text.positive("num_hidden_layers"),
        hidden_size=text.positive("hidden_size"),
        vocab_size=text.positive("vocab_size"),
        max_position_embeddings=text.positive("max_position_embeddings"),
        attention=_attention(text, family),
        experts=_experts(text, family),
        tied_embeddings=tied_in.flag("tie_word_embeddings", default=False),
    )


def _attention(text: Config, family: Family) -> AttentionFacts:
    heads = text.positive("num_attention_heads")
    kv_heads = text.positive("num_key_value_heads", default=heads)
    try:
        if family.attention is AttentionKind.MLA:
            rope = text.positive("qk_rope_head_dim")
            return AttentionFacts(
                kind=AttentionKind.MLA,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=text.positive("qk_nope_head_dim") + rope,
                kv_lora_rank=text.positive("kv_lora_rank"),
                qk_rope_head_dim=rope,
            )
        hidden = text.positive("hidden_size")
        if not text.has("head_dim") and hidden % heads:
            raise invalid(f"{text.path}: hidden_size {hidden} is no multiple of num_attention_heads {heads}")
        head_dim = text.positive("head_dim", default=max(1, hidden // heads))
        return AttentionFacts(kind=AttentionKind.GQA, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    except ValidationError as error:
        raise invalid(f"{text.path}: {error.errors()[0]['msg']}") from error


def _experts(text: Config, family: Family) -> RoutedExperts | None:
    if not family.expert_count:
        return None
    experts = RoutedExperts(
        count=text.positive(*family.expert_count),
        per_token=text.positive("num_experts_per_tok"),
        intermediate_size=text.positive(family.expert_width),
    )
    if experts.per_token > experts.count:
        raise invalid(
            f"{text.path}: num_experts_per_tok {experts.per_token} exceeds {family.expert_count[0]} {experts.count}"
        )
    return experts


def _shown(value: object) -> str:
    """A value as JSON, short enough for a message."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
