"""The committed tiny MoE is what the recipe says, and what other programs take it for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from e2e.models import checkpoint
from e2e.models.recipe import CHECKPOINT_DIR, PINNED_SHA256, ModelShape, sha256_of

SIZE_LIMIT_BYTES = 12_000_000


@pytest.mark.parametrize("name", sorted(PINNED_SHA256))
def test_committed_file_has_the_pinned_hash(name: str) -> None:
    assert sha256_of(CHECKPOINT_DIR / name) == PINNED_SHA256[name]


def test_checkpoint_stays_within_its_size_budget() -> None:
    assert sum(path.stat().st_size for path in CHECKPOINT_DIR.iterdir()) <= SIZE_LIMIT_BYTES


def test_every_file_is_readable_by_a_process_of_another_user() -> None:
    assert all(path.stat().st_mode & 0o004 for path in CHECKPOINT_DIR.iterdir())


def test_model_card_carries_the_licence_of_the_text() -> None:
    assert "PSF License" in (CHECKPOINT_DIR / "README.md").read_text(encoding="utf-8")
    assert "PSF LICENSE AGREEMENT" in (CHECKPOINT_DIR / "LICENSE-PSF.txt").read_text(encoding="utf-8")


def test_weights_are_bf16_under_the_published_per_expert_names() -> None:
    shape = ModelShape()
    with safe_open(CHECKPOINT_DIR / "model.safetensors", framework="pt") as stored:
        names = set(stored.keys())
        assert {stored.get_slice(name).get_dtype() for name in names} == {"BF16"}
        experts = {
            f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"
            for layer in range(shape.num_hidden_layers)
            for expert in range(shape.num_experts)
            for part in ("gate", "up", "down")
        }
        assert {name for name in names if ".experts." in name} == experts
        gate = stored.get_slice("model.layers.0.mlp.experts.0.gate_proj.weight")
        assert gate.get_shape() == [shape.moe_intermediate_size, shape.hidden_size]


def test_transformers_loads_it_and_computes_the_same_logits() -> None:
    from transformers import Qwen3MoeForCausalLM

    loaded: tuple[Any, dict[str, Any]] = Qwen3MoeForCausalLM.from_pretrained(  # type: ignore[assignment]
        CHECKPOINT_DIR, dtype=torch.float32, output_loading_info=True
    )
    library, loading = loaded
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert library.config.rope_parameters["rope_theta"] == ModelShape.rope_theta
    ids = torch.randint(0, 2048, (2, 200), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours, _ = checkpoint.load(CHECKPOINT_DIR)(ids)
        theirs = library(ids).logits
    # FP32 sums in another order: 4 layers leave differences near 1e-5 on logits of size 10.
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=0)


def test_saving_a_loaded_checkpoint_gives_the_same_weights(tmp_path: Path) -> None:
    model = checkpoint.load(CHECKPOINT_DIR)
    checkpoint.save(model, CHECKPOINT_DIR / "tokenizer.json", (), tmp_path)
    again = checkpoint.load(tmp_path)
    for (name, before), (_, after) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(before, after), name


def test_a_file_cut_short_is_refused_by_name(tmp_path: Path) -> None:
    whole = (CHECKPOINT_DIR / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(checkpoint.CheckpointError, match=r"model\.safetensors is no readable safetensors file"):
        checkpoint.load(tmp_path)


def test_a_checkpoint_with_another_set_of_tensors_is_refused_by_name(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(CHECKPOINT_DIR / "model.safetensors")
    del tensors["model.layers.2.mlp.experts.5.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(checkpoint.CheckpointError, match=r"layers\.2\.mlp\.experts\.5\.up_proj"):
        checkpoint.load(tmp_path)
