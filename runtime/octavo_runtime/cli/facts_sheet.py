"""ModelFacts as a sheet that a person reads: what the model is, where its weight lies, what each precision costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo_runtime.contract.facts import AttentionKind, CheckpointFormat, ModelFacts
from octavo_runtime.contract.footprint import kv_bytes_per_token, tokens_in, weight_bytes
from octavo_runtime.contract.parallel import ParallelLayout
from octavo_runtime.contract.precision import KvFormat, WeightFormat
from octavo_runtime.contract.refused import Refused
from octavo_runtime.contract.servable import check_servable

GIB = 2**30
BAR_WIDTH = 24
LABEL_WIDTH = 18


def facts_sheet(facts: ModelFacts, packing: str) -> str:
    """The whole sheet, without a final newline. `packing` names the layout of the weights in the checkpoint."""
    sections = (_identity(facts), _parameters(facts), _memory(facts, packing), [_verdict(facts)])
    return "\n\n".join("\n".join(section) for section in sections)


def _identity(facts: ModelFacts) -> list[str]:
    attention, experts = facts.attention, facts.experts
    if attention.kind is AttentionKind.MLA:
        shape = f"{attention.heads} heads, MLA: {attention.kv_lora_rank} latent + {attention.qk_rope_head_dim} rotary"
    else:
        shape = f"{attention.heads} heads, {attention.kv_heads} KV heads x {attention.head_dim}"
    rows = [
        ("architecture", facts.architecture),
        ("revision", facts.revision),
        ("layers", f"{facts.layers} x {facts.hidden_size:,} wide, vocabulary {facts.vocab_size:,}"),
        ("attention", shape),
    ]
    if experts is None:
        rows.append(("experts", "none (a dense model)"))
    else:
        rows.append(
            (
                "experts",
                f"{experts.count}, {experts.per_token} per token, {experts.intermediate_size:,} wide, "
                f"in {experts.layers} layers",
            )
        )
    rows.append(("context", f"{facts.max_position_embeddings:,} tokens"))
    return [f"{label:<{LABEL_WIDTH}}{value}" for label, value in rows]


def _parameters(facts: ModelFacts) -> list[str]:
    counts = facts.parameters
    rows = [("routed experts", counts.routed_experts), ("embeddings", counts.embeddings), ("other", counts.other)]
    lines = [f"{'parameters':<{LABEL_WIDTH}}{_count(counts.total):>8}"]
    for label, count in rows:
        share = count / max(1, counts.total)
        bar = "█" * round(share * BAR_WIDTH)
        lines.append(f"  {label:<{LABEL_WIDTH - 2}}{_count(count):>8}  {bar:<{BAR_WIDTH}} {share:6.1%}")
    return lines


def _memory(facts: ModelFacts, packing: str) -> list[str]:
    layout = ParallelLayout.of(facts, 1)
    group = f", groups of {facts.group_size}" if facts.group_size else ""
    stored = f"{_size(facts.checkpoint_bytes)} as {facts.format}" + (f" ({packing}{group})" if group else "")
    row_bytes = ", ".join(f"{kv} {kv_bytes_per_token(facts, kv, layout):,} B" for kv in KvFormat)
    tokens = ", ".join(f"{kv} {tokens_in(GIB, facts, kv, layout):,} tokens" for kv in KvFormat)
    rows = (("checkpoint", stored), ("KV per token", row_bytes), ("KV per GiB", tokens))
    lines = [*(f"{label:<{LABEL_WIDTH}}{value}" for label, value in rows), ""]
    head = ("experts as", "weights", "per GPU of 2", "of 4", "of 8")
    return lines + _table([head, *(_weights_row(facts, option) for option in _options(facts))])


def _options(facts: ModelFacts) -> tuple[WeightFormat, ...]:
    """A quantised checkpoint keeps its format; any other one can be converted."""
    return (WeightFormat(facts.format.value),) if facts.format.quantised else tuple(WeightFormat)


def _weights_row(facts: ModelFacts, option: WeightFormat) -> tuple[str, ...]:
    note = "" if facts.format.quantised or option is WeightFormat.BF16 else " (converted)"
    if facts.format in {CheckpointFormat.FP16, CheckpointFormat.FP32} and option is WeightFormat.BF16:
        note = " (rounded)"
    cells = [f"{option}{note}"]
    for ranks in (1, 2, 4, 8):
        try:
            cells.append(_size(weight_bytes(facts, option, ParallelLayout.of(facts, ranks)).total))
        except ValueError:
            cells.append("-")
    return tuple(cells)


def _verdict(facts: ModelFacts) -> str:
    try:
        check_servable(facts)
    except Refused as refused:
        return f"{'served':<{LABEL_WIDTH}}no: {refused.message}"
    return f"{'served':<{LABEL_WIDTH}}yes"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [_line(row, widths) for row in rows]


def _line(cells: Sequence[str], widths: Iterable[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    return f"  {first[0]:<{first[1]}}" + "".join(f"  {cell:>{width}}" for cell, width in rest)


def _count(parameters: int) -> str:
    for unit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= unit:
            return f"{parameters / unit:.2f} {name}"
    return str(parameters)


def _size(size_bytes: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:,.1f} {name}"
    return f"{size_bytes} B"
