"""The trained model as a Hugging Face checkpoint: BF16 weights under the names Qwen3-MoE is published with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from .corpus import Document
from .model import TinyMoe
from .recipe import DEBIAN_PACKAGE, END_OF_TEXT, TURN_END, VALIDATION_FILE, WEIGHTS_FILE, ModelShape
from .vocabulary import token_id, tokenizer_config

EXCERPT_CHARS = 3_200
"""Of each held-out document: 25 excerpts are about 80 kB and 26,000 tokens."""
LICENCE = (
    "Excerpts of the Python 3.11 documentation, copyright 2001-2023 Python Software Foundation, "
    "under the PSF License Version 2 (https://docs.python.org/3.11/license.html)."
)


class CheckpointError(Exception):
    """A checkpoint is missing or not the tiny MoE; the message names the file and the difference."""


def save(model: TinyMoe, tokenizer_file: Path, held_out: tuple[Document, ...], folder: Path) -> None:
    """Write everything but the README; weights are rounded to nearest even BF16."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in published(model)}
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / WEIGHTS_FILE).chmod(0o644)  # safetensors creates it 0600, unreadable to a non-root pod
    shutil.copyfile(tokenizer_file, folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    end_of_text, end_of_turn = token_id(tokenizer, END_OF_TEXT), token_id(tokenizer, TURN_END)
    _write(folder / "config.json", config(model.shape, end_of_text, end_of_turn))
    _write(folder / "generation_config.json", generation_config(end_of_text, end_of_turn))
    _write(folder / "tokenizer_config.json", tokenizer_config())
    _write(folder / VALIDATION_FILE, validation(held_out))


def load(folder: Path, shape: ModelShape | None = None) -> TinyMoe:
    """The training model in f32 with a checkpoint's weights; raises CheckpointError on any other set of tensors."""
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist")
    model = TinyMoe(shape or ModelShape())
    try:
        stored = load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is no readable safetensors file: {error}") from error
    expected = dict(published(model))
    if stored.keys() != expected.keys():
        odd = sorted(stored.keys() ^ expected.keys())
        raise CheckpointError(f"{path}: {len(odd)} tensor names differ, the first is {odd[0]}")
    with torch.no_grad():
        for name, tensor in expected.items():
            if stored[name].shape != tensor.shape:
                raise CheckpointError(f"{path}: {name} is {list(stored[name].shape)}, expected {list(tensor.shape)}")
            tensor.copy_(stored[name])
    return model


def load_tokenizer(folder: Path) -> Tokenizer:
    """The checkpoint's tokeniser; raises CheckpointError when there is none or it cannot be read."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no tokenizer.json: is it a checkpoint folder?")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{path} is no readable tokeniser: {error}") from error


def published(model: TinyMoe) -> Iterator[tuple[str, Tensor]]:
    """(published name, view of the parameter) for every tensor of the checkpoint; expert stacks come apart."""
    for name, parameter in model.named_parameters():
        prefix, stack, kind = name.partition(".mlp.experts.")
        if not stack:
            yield f"model.{name}", parameter.detach()
            continue
        for index, expert in enumerate(parameter.detach()):
            home = f"model.{prefix}.mlp.experts.{index}"
            if kind == "down_proj":
                yield f"{home}.down_proj.weight", expert
            else:
                gate, up = expert.chunk(2)
                yield f"{home}.gate_proj.weight", gate
                yield f"{home}.up_proj.weight", up


def config(shape: ModelShape, end_of_text: int, end_of_turn: int) -> dict[str, object]:
    """Contents of ``config.json``."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        **asdict(shape),
        "intermediate_size": 512,
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rope_scaling": None,
        "use_sliding_window": False,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "router_aux_loss_coef": 0.01,
        "output_router_logits": False,
        "initializer_range": 0.02,
        "use_cache": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        "pad_token_id": end_of_text,
        "eos_token_id": end_of_turn,
    }


def generation_config(end_of_text: int, end_of_turn: int) -> dict[str, object]:
    """Contents of ``generation_config.json``: greedy, ending at the end of a turn or of a document."""
    return {"do_sample": False, "eos_token_id": [end_of_turn, end_of_text], "pad_token_id": end_of_text}


def validation(documents: tuple[Document, ...]) -> dict[str, object]:
    """The middle of each held-out document, from one line start to another."""
    excerpts = []
    for document in documents:
        start = document.text.find("\n", max(0, len(document.text) - EXCERPT_CHARS) // 2) + 1
        excerpt = document.text[start : start + EXCERPT_CHARS].rpartition("\n")[0] + "\n"
        excerpts.append({"path": document.path, "text": excerpt})
    return {"licence": LICENCE, "source": f"Debian package {DEBIAN_PACKAGE}", "documents": excerpts}


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
