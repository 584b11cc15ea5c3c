# SPDX-License-Identifier: Apache-2.0
"""The two models that `fetch` knows, as the checkpoint reader sees them: every tensor against the reference package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import tiny
from models import model_file

from nanobuild.checkpoint import open_checkpoint
from nanobuild.gguf_file import GgufFile

pytestmark = pytest.mark.model


@pytest.mark.parametrize(
    ("name", "tensors", "stops", "windows"),
    [("smollm2-135m", 272, (2,), [0] * 30), ("gemma3-270m", 236, (1,), [512, 512, 512, 512, 512, 0] * 3)],
)
def test_real_files(name: str, tensors: int, stops: tuple[int, ...], windows: list[int]) -> None:
    path = model_file(name)
    stored = GgufFile(path)
    with open_checkpoint(path) as checkpoint:
        assert len(checkpoint.tensors) == len(stored.tensors) == tensors
        assert checkpoint.eos_ids == stops
        assert checkpoint.warnings == checkpoint.skipped == []
        assert [layer.window for layer in checkpoint.spec.layers] == windows
        heads = checkpoint.spec.head_dim
        pieces = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "down": "ffn_down", "up": "ffn_up"}
        for layer in (0, len(windows) - 1):
            for ours, theirs in {**pieces, "attn_norm": "attn_norm", "ffn_norm": "ffn_norm"}.items():
                raw = stored.tensors[f"blk.{layer}.{theirs}.weight"]
                data = np.fromfile(path, np.uint8, raw.nbytes, offset=raw.offset)
                kind = gguf.GGMLQuantizationType[raw.dtype]
                rows = data.reshape(raw.shape[0], -1) if len(raw.shape) == 2 else data.view(np.float32)
                want = gguf.quants.dequantize(rows, kind)
                got = checkpoint.read(f"layers.{layer}.{ours}")
                if ours in ("q", "k") and not checkpoint.spec.qk_norm:
                    got = tiny.interleave(got, heads)
                assert np.array_equal(got, want), (layer, ours)
