# SPDX-License-Identifier: Apache-2.0
"""The float model, read through our own checkpoint reader, against transformers on small random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanobuild.checkpoint import open_checkpoint
from nanobuild.floatmodel import float_logits

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def llama(**more: Any) -> Any:
    config = transformers.LlamaConfig(**SIZES, num_hidden_layers=3, num_key_value_heads=2, head_dim=16, **more)
    return transformers.LlamaForCausalLM(config)


def gemma3() -> Any:
    config = transformers.Gemma3TextConfig(
        **SIZES,
        num_hidden_layers=7,  # six with a window, one without
        num_key_value_heads=1,
        head_dim=32,
        sliding_window=17,
        query_pre_attn_scalar=24,
        layer_types=["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
    )
    return transformers.Gemma3ForCausalLM(config)


MODELS = {
    "llama, llama3 rope, own head": lambda: llama(rope_parameters=LLAMA3, tie_word_embeddings=False),
    "llama, tied": lambda: llama(tie_word_embeddings=True),
    "gemma3": gemma3,
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    torch.manual_seed(5)
    model = MODELS[name]().float().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms too, which start as all ones or all zeros
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(tmp_path, safe_serialization=True)
    ids = np.random.default_rng(1).integers(0, SIZES["vocab_size"], (2, 100))
    with torch.no_grad():
        want = model(torch.tensor(ids)).logits.numpy()
    with open_checkpoint(tmp_path) as checkpoint:
        got = np.stack(list(float_logits(checkpoint, ids.tolist())))
    assert got.dtype == np.float32
    assert np.abs(want).max() > 1, "logits too small for the test to mean anything"
    assert np.abs(got - want).max() < 1e-4
