# SPDX-License-Identifier: Apache-2.0
"""Checkpoints from disk: the same canonical tensors from every container, nothing lost silently."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny
import tinyfiles

from nanobuild.checkpoint import Checkpoint, open_checkpoint
from nanobuild.errors import InputError

MODELS: dict[str, Callable[[], tiny.Model]] = {
    "llama": tiny.llama,
    "llama3-tied": lambda: tiny.llama(tied=True, llama3=True),
    "odd-widths": lambda: tiny.llama(hidden_size=80, intermediate_size=104, head_dim=10),
    "gemma3": tiny.gemma3,
    "gemma3-untied": lambda: tiny.gemma3(tied=False),
}


def code_of(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        open_checkpoint(path)
    return caught.value.code


def all_tensors(checkpoint: Checkpoint) -> dict[str, Any]:
    with checkpoint:
        return {name: checkpoint.read(name) for name in checkpoint.tensors}


@pytest.mark.parametrize("name", MODELS)
def test_every_container_gives_the_same_tensors(tmp_path: Path, name: str) -> None:
    model = MODELS[name]()
    one = open_checkpoint(tiny.write_hf(tmp_path / "one", model, dtype="F32"))
    others = [
        open_checkpoint(tiny.write_hf(tmp_path / "many", model, dtype="F32", shards=4)),
        open_checkpoint(tiny.write_gguf(tmp_path / "m.gguf", model)),
        open_checkpoint(tmp_path / "one" / "model.safetensors"),
    ]
    shapes = one.spec.tensor_shapes()
    assert {n: info.shape for n, info in one.tensors.items()} == shapes
    want = all_tensors(one)
    for values in want.values():
        assert values.dtype == np.float32
        assert values.flags.c_contiguous
    for other in others:
        assert list(other.tensors) == list(shapes)
        assert (other.eos_ids, other.bos_id) == (one.eos_ids, one.bos_id)
        for n, values in all_tensors(other).items():
            assert np.array_equal(values, want[n]), n


def test_what_the_values_are(tmp_path: Path) -> None:
    llama, gemma = tiny.llama(), tiny.gemma3()
    got = all_tensors(open_checkpoint(tiny.write_hf(tmp_path / "l", llama, dtype="F32")))
    assert np.array_equal(got["layers.1.q"], llama.tensors["model.layers.1.self_attn.q_proj.weight"])
    assert np.array_equal(got["layers.0.ffn_norm"], llama.tensors["model.layers.0.post_attention_layernorm.weight"])
    assert np.array_equal(got["head"], llama.tensors["lm_head.weight"])
    got = all_tensors(open_checkpoint(tiny.write_hf(tmp_path / "g", gemma, dtype="F32")))
    one = np.float32(1)
    for ours, theirs in {
        "final_norm": "model.norm",
        "layers.2.attn_norm": "model.layers.2.input_layernorm",
        "layers.2.attn_post_norm": "model.layers.2.post_attention_layernorm",
        "layers.2.ffn_norm": "model.layers.2.pre_feedforward_layernorm",
        "layers.2.ffn_post_norm": "model.layers.2.post_feedforward_layernorm",
        "layers.2.q_norm": "model.layers.2.self_attn.q_norm",
    }.items():
        assert np.array_equal(got[ours], gemma.tensors[theirs + ".weight"] + one)
    assert np.array_equal(got["embed"], gemma.tensors["model.embed_tokens.weight"])


@pytest.mark.parametrize("name", MODELS)
def test_rows_are_slices_of_the_whole(tmp_path: Path, name: str) -> None:
    checkpoint = open_checkpoint(tiny.write_gguf(tmp_path / "m.gguf", MODELS[name]()))
    for tensor in ("embed", "layers.1.q", "layers.1.k", "layers.0.down", "final_norm"):
        whole, rows = checkpoint.read(tensor), checkpoint.tensors[tensor].shape[0]
        for start, stop in ((0, 1), (rows // 3, rows // 3 + 5), (7, rows), (rows, rows), (3, 3)):
            part = checkpoint.read(tensor, start, stop)
            assert part.flags.c_contiguous
            assert np.array_equal(part, whole[start:stop])
        for start, stop in ((-1, 2), (2, 1), (0, rows + 1)):
            with pytest.raises(IndexError):
                checkpoint.read(tensor, start, stop)


def test_quantized_gguf_matrices(tmp_path: Path) -> None:
    model, kind = tiny.llama(), gguf.GGMLQuantizationType.Q8_0
    tensors = tiny.gguf_tensors(model, encoder=lambda m: gguf.quants.quantize(m, kind).tobytes(), type_id=8)
    path = tmp_path / "m.gguf"
    path.write_bytes(tinyfiles.gguf_bytes(tiny.gguf_metadata(model), tensors))
    checkpoint = open_checkpoint(path)
    assert checkpoint.tensors["layers.0.q"].dtype == "Q8_0"
    assert checkpoint.tensors["layers.0.q"].nbytes == 128 * 64 // 32 * 34
    exact = model.tensors["model.layers.0.self_attn.q_proj.weight"]
    assert np.abs(checkpoint.read("layers.0.q") - exact).max() < np.abs(exact).max() / 100


def test_interleaving_is_what_the_converter_does() -> None:
    rows = np.arange(2 * 6)[:, None] * np.ones((1, 3))
    assert tiny.interleave(rows, 6)[:, 0].tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


# ---------------------------------------------------------------- the ledger


def with_extra(folder: Path, extra: list[tinyfiles.Entry], model: tiny.Model | None = None) -> Path:
    made = model or tiny.llama()
    tiny.write_hf(folder, made)
    entries = tinyfiles.st_entries(made.tensors) + extra
    (folder / "model.safetensors").write_bytes(tinyfiles.st_bytes(entries))
    return folder


def test_skipped_with_a_reason(tmp_path: Path) -> None:
    inv_freq = "model.layers.0.self_attn.rotary_emb.inv_freq"
    extra = [(inv_freq, "F32", [4], bytes(16)), ("model.unused", "F32", [0, 4], b"")]
    checkpoint = open_checkpoint(with_extra(tmp_path, extra))
    assert checkpoint.skipped == [
        (inv_freq, "rotation frequencies come from the configuration"),
        ("model.unused", "it has no elements"),
    ]
    llama3 = open_checkpoint(tiny.write_gguf(tmp_path / "m.gguf", tiny.llama(llama3=True)))
    assert llama3.skipped == [("rope_freqs.weight", "used for the rotation frequencies")]


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_proj.bias", "model.layers.2.mlp.up_proj.weight", "x\x1b[2J"]
)
def test_a_tensor_that_nobody_knows(tmp_path: Path, name: str) -> None:
    folder = with_extra(tmp_path, [(name, "F32", [1], bytes(4))])
    with pytest.raises(InputError, match="is not known in this architecture") as caught:
        open_checkpoint(folder)
    assert caught.value.code == "E_CKPT_UNKNOWN_TENSOR"
    assert "\x1b" not in str(caught.value)


def test_missing_and_misshapen(tmp_path: Path) -> None:
    model = tiny.llama()
    down = "model.layers.0.mlp.down_proj.weight"
    model.tensors[down] = np.ascontiguousarray(model.tensors[down].T)
    with pytest.raises(InputError, match=r"down_proj.* has the shape \[96, 64\], needed is \[64, 96\]") as caught:
        open_checkpoint(tiny.write_hf(tmp_path / "shape", model))
    assert caught.value.code == "E_CKPT_SHAPE"
    del model.tensors[down], model.tensors["model.norm.weight"]
    with pytest.raises(InputError, match=r"down_proj\.weight' and 1 more is not there") as caught:
        open_checkpoint(tiny.write_hf(tmp_path / "missing", model))
    assert caught.value.code == "E_CKPT_MISSING_TENSOR"
    assert code_of(tiny.write_gguf(tmp_path / "m.gguf", model)) == "E_CKPT_MISSING_TENSOR"


def test_vocabulary_and_rows_disagree(tmp_path: Path) -> None:
    model = tiny.llama()
    model.config["vocab_size"] = 999
    assert code_of(tiny.write_hf(tmp_path / "m", model)) == "E_CKPT_SHAPE"
    assert code_of(tiny.write_gguf(tmp_path / "m.gguf", model)) == "E_CKPT_SHAPE"


def test_a_needed_tensor_of_an_unreadable_type(tmp_path: Path) -> None:
    model = tiny.llama()
    entries = [
        (n, "I32" if n == "model.norm.weight" else d, s, b * 2 if n == "model.norm.weight" else b)
        for n, d, s, b in tinyfiles.st_entries(model.tensors)
    ]
    tiny.write_hf(tmp_path, model)
    (tmp_path / "model.safetensors").write_bytes(tinyfiles.st_bytes(entries))
    assert code_of(tmp_path) == "E_ST_DTYPE"


def test_a_head_that_equals_the_embedding_is_tied(tmp_path: Path) -> None:
    model = tiny.llama()
    model.config["tie_word_embeddings"] = True
    different = open_checkpoint(tiny.write_hf(tmp_path / "a", model))
    assert not different.spec.tied
    assert len(different.warnings) == 1
    model.tensors["lm_head.weight"] = model.tensors["model.embed_tokens.weight"]
    equal = open_checkpoint(tiny.write_hf(tmp_path / "b", model))
    assert equal.spec.tied
    assert equal.warnings == []
    assert equal.skipped == [("lm_head.weight", "equal to the embedding")]
    assert "head" not in equal.tensors


# ---------------------------------------------------------------- ids, hash, source of the tokenizer


def test_stop_ids_are_a_union(tmp_path: Path) -> None:
    folder = tiny.write_hf(tmp_path / "m", tiny.llama(eos_token_id=[5, 6], bos_token_id=None))
    tiny.write_json(folder / "generation_config.json", {"eos_token_id": [6, 7], "bos_token_id": 3, "top_p": 0.9})
    checkpoint = open_checkpoint(folder)
    assert (checkpoint.eos_ids, checkpoint.bos_id) == ((5, 6, 7), 3)
    tiny.write_json(folder / "generation_config.json", {"eos_token_id": None})
    assert open_checkpoint(folder).eos_ids == (5, 6)
    tiny.write_json(folder / "generation_config.json", {"eos_token_id": 10**6})
    assert code_of(folder) == "E_CFG_RANGE"
    tiny.write_json(folder / "generation_config.json", {"eos_token_id": "</s>"})
    assert code_of(folder) == "E_CFG_TYPE"
    (folder / "generation_config.json").write_text("{")
    assert code_of(folder) == "E_CFG_JSON"


def test_gguf_stop_ids(tmp_path: Path) -> None:
    model, path = tiny.llama(), tmp_path / "m.gguf"
    meta = tiny.gguf_metadata(model) | {"tokenizer.ggml.eot_token_id": 9, "tokenizer.ggml.eos_token_ids": [4, 9]}
    path.write_bytes(tinyfiles.gguf_bytes(meta, tiny.gguf_tensors(model)))
    assert open_checkpoint(path).eos_ids == (model.config["eos_token_id"], 4, 9)
    path.write_bytes(tinyfiles.gguf_bytes(meta | {"tokenizer.ggml.eos_token_id": 10**6}, tiny.gguf_tensors(model)))
    assert code_of(path) == "E_GGUF_VALUE"
    path.write_bytes(tinyfiles.gguf_bytes(meta | {"split.count": 2}, tiny.gguf_tensors(model)))
    assert code_of(path) == "E_CFG_UNSUPPORTED"


def test_tokenizer_source(tmp_path: Path) -> None:
    folder = tiny.write_hf(tmp_path / "m", tiny.llama())
    assert open_checkpoint(folder).tokenizer_source.folder == folder
    assert open_checkpoint(folder / "model.safetensors").tokenizer_source.folder == folder
    source = open_checkpoint(tiny.write_gguf(tmp_path / "m.gguf", tiny.llama())).tokenizer_source
    assert source.folder is None
    assert source.gguf is not None
    assert all(key.startswith("tokenizer.") for key in source.gguf)
    assert source.gguf["tokenizer.ggml.tokens"] == tiny.vocabulary()
    assert "llama.block_count" not in source.gguf


def test_source_hash(tmp_path: Path) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.llama())
    seen: list[tuple[int, int]] = []
    checkpoint = open_checkpoint(path)
    assert (
        checkpoint.source_hash(lambda done, total: seen.append((done, total)))
        == hashlib.sha256(path.read_bytes()).hexdigest()
    )
    assert seen[-1] == (path.stat().st_size,) * 2
    folder = tiny.write_hf(tmp_path / "m", tiny.llama(), shards=2)
    whole = b"".join(p.read_bytes() for p in sorted(folder.glob("*.safetensors")))
    assert open_checkpoint(folder).source_hash() == hashlib.sha256(whole).hexdigest()


# ---------------------------------------------------------------- paths


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    assert code_of(tmp_path / "gone") == "E_CKPT_NOT_FOUND"
    assert code_of(tmp_path / "gone.gguf") == "E_CKPT_NOT_FOUND"
    assert code_of(Path("a\0b")) == "E_CKPT_NOT_FOUND"
    assert code_of(tmp_path) == "E_CKPT_NO_WEIGHTS"
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    assert code_of(tmp_path) == "E_CKPT_NO_WEIGHTS"
    assert code_of(tmp_path / "pytorch_model.bin") == "E_CKPT_KIND"
    os.mkfifo(tmp_path / "m.gguf")
    assert code_of(tmp_path / "m.gguf") == "E_CKPT_READ"


def test_config_files_of_strangers(tmp_path: Path) -> None:
    folder = tiny.write_hf(tmp_path, tiny.llama())
    config = folder / "config.json"
    text = config.read_text()
    for bad in (text[:90], text.replace("1e-05", "NaN"), text.replace("{", '{"hidden_size": 1,', 1), "[]", ""):
        config.write_text(bad)
        assert code_of(folder) == "E_CFG_JSON"
    config.write_text(text + " " * (4 << 20))
    assert code_of(folder) == "E_CFG_JSON"
    config.unlink()
    assert code_of(folder) == "E_CFG_MISSING"


def test_links_and_gguf_in_a_folder(tmp_path: Path) -> None:
    real = tiny.write_hf(tmp_path / "blobs", tiny.llama())
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).symlink_to(real / name)
    assert open_checkpoint(snapshot).spec == open_checkpoint(real).spec
    alone = tmp_path / "alone"
    alone.mkdir()
    path = tiny.write_gguf(alone / "m.gguf", tiny.gemma3())
    assert open_checkpoint(alone).path == path
    path.rename(alone / "no-suffix")
    assert open_checkpoint(alone / "no-suffix").spec.post_norms


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    folder = tiny.write_hf(tmp_path / "m", tiny.llama(), shards=3)
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.llama())
    before = len(os.listdir("/proc/self/fd"))
    for good in (folder, path):
        with open_checkpoint(good) as checkpoint:
            checkpoint.source_hash()
    path.write_bytes(path.read_bytes()[:-9])
    (folder / "config.json").write_text('{"architectures": ["X"]}')
    assert {code_of(path), code_of(folder)} == {"E_GGUF_TRUNCATED", "E_CFG_UNSUPPORTED"}
    assert len(os.listdir("/proc/self/fd")) == before
