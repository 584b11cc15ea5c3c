# SPDX-License-Identifier: Apache-2.0
"""Shapes with random weights: the file for us and the files for the peers have the same matrices, and sane numbers."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from nanobuild import synthetic, synthetic_gguf
from nanobuild.errors import UsageError
from nanobuild.formats import Format
from nanobuild.gguf_file import GgufFile
from nanobuild.modelfile import ModelFile
from nanobuild.reference import Reference

SMALL = {"hidden": 256, "ffn": 512, "heads": 4, "kv_heads": 2, "head_dim": 64, "vocab": 700, "layers": 2}


def small(name: str) -> synthetic.Shape:
    """A shape's features in a size for tests."""
    return msgspec.structs.replace(synthetic.shape_of(name), **SMALL)


@pytest.mark.parametrize("name", list(synthetic.known_shapes()))
@pytest.mark.parametrize("kind", synthetic_gguf.KINDS)
def test_gguf_for_the_peers(tmp_path: Path, name: str, kind: str) -> None:
    shape, path = small(name), tmp_path / "m.gguf"
    synthetic_gguf.write_gguf(path, shape, kind)
    file = GgufFile(path)
    meta, tensors = file.metadata, file.tensors
    assert meta["general.architecture"] == shape.arch
    assert meta[f"{shape.arch}.attention.head_count_kv"] == 2
    tokens = meta["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    assert len(tokens) == len(set(tokens)) == shape.vocab
    assert ("output.weight" in tensors) == (not shape.tied)
    head = "token_embd.weight" if shape.tied else "output.weight"
    kinds = {n: t.dtype for n, t in tensors.items() if len(t.shape) == 2}
    assert kinds.pop(head) == "Q6_K"
    assert set(kinds.values()) == {kind}
    ours = synthetic.shape_spec(shape).tensor_shapes()
    assert sum(len(t.shape) == 2 for t in tensors.values()) == sum(len(s) == 2 for s in ours.values())
    gate, up = (file.read_rows(f"blk.0.ffn_{x}.weight", 0, shape.ffn) for x in ("gate", "up"))
    assert 0.2 < float(np.std(gate)) * shape.hidden**0.5 < 5
    assert not np.array_equal(gate, up)  # or engines could compute it once
    assert 0.05 < float(np.std(file.read_rows(head, 0, 64))) * shape.hidden**0.5 < 5


def test_gguf_is_what_others_read(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "m.gguf"
    synthetic_gguf.write_gguf(path, small("qwen2-1.5b"), "Q4_K")
    reader = gguf.GGUFReader(path)
    assert {t.name for t in reader.tensors} == set(GgufFile(path).tensors)
    assert reader.fields["qwen2.rope.freq_base"].parts[-1][0] == np.float32(1e6)


def test_rows_that_are_no_whole_blocks(tmp_path: Path) -> None:
    shape = synthetic.shape_of("smollm2-135m")
    assert synthetic_gguf.can_hold(shape, "Q4_0")
    assert not synthetic_gguf.can_hold(shape, "Q4_K")
    with pytest.raises(UsageError, match="whole blocks"):
        synthetic_gguf.write_gguf(tmp_path / "m.gguf", shape, "Q4_K")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", list(synthetic.known_shapes()))
def test_model_file_for_us_gives_finite_numbers(tmp_path: Path, name: str) -> None:
    fmt, path = Format(bits=4, group=32), tmp_path / "m.nano"
    spec = synthetic.shape_spec(small(name))
    synthetic.write_synthetic(path, spec, fmt=fmt, head=fmt)
    logits = Reference(spec, ModelFile(path).weights()).forward([1, 2, 3])
    assert np.isfinite(logits).all()
    assert 0 < float(np.abs(logits).max()) < 1e4


def test_the_key_of_a_shape_follows_every_field() -> None:
    shape = synthetic.shape_of("llama3-8b")
    changed = [msgspec.structs.replace(shape, **{f: getattr(shape, f) + 1}) for f in ("hidden", "theta", "window")]
    assert len({synthetic.shape_key(s) for s in [shape, *changed]}) == 4
    with pytest.raises(UsageError, match="known: llama3-8b"):
        synthetic.shape_of("llama4")
