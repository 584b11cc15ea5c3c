# SPDX-License-Identifier: Apache-2.0
"""quantize: the plan is exact, the file reads back, bad weights and bad ends leave nothing behind."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from nanobuild import quantize as work
from nanobuild.errors import InputError, NanoBuildError, ResourceError, UsageError
from nanobuild.formats import quantize
from nanobuild.publish import check_output
from nanobuild.quantized import QuantizedCheckpoint
from nanobuild.recipes import load_recipe
from nanobuild.spec import Layer, ModelSpec, Rope

SPEC = ModelSpec(
    family="test", hidden=72, ffn=100, heads=3, kv_heads=1, head_dim=16, vocab=90, max_positions=512, norm_eps=1e-6,
    activation="silu", attn_scale=0.25, embed_scale=1.0, qk_norm=False, post_norms=False, tied=True,
    ropes=(Rope(inv_freq=(1.0, 0.5)),), layers=(Layer(rope=0, window=0),) * 2,
)  # fmt: skip


@dataclasses.dataclass
class Memory:
    """A checkpoint in memory."""

    weights: dict[str, np.ndarray]
    path: Path = Path("memory")
    spec: ModelSpec = SPEC

    def read(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        return self.weights[name][start:stop]

    def source_hash(self) -> str:
        return "0" * 64


@pytest.fixture
def source() -> Memory:
    rng = np.random.default_rng(0)
    return Memory({n: rng.standard_normal(s).astype(np.float32) * 0.1 for n, s in SPEC.tensor_shapes().items()})


def plan_of(source: Memory, recipe: str = "q4") -> work.Plan:
    return work.make_plan(source, load_recipe(recipe), tokenizer=b"tok", chat=b"", notes={"chat": "none"})


@pytest.mark.parametrize("recipe", ["q4", "q8", "q4g32"])
def test_plan_is_exact_and_the_file_reads_back(source: Memory, recipe: str, tmp_path: Path) -> None:
    plan, out = plan_of(source, recipe), tmp_path / "q.safetensors"
    work.write_quantized(source, plan, out)
    assert out.stat().st_size == plan.file_bytes
    with QuantizedCheckpoint(out) as back:
        assert back.spec == SPEC
        assert back.tokenizer == b"tok"
        assert back.chat == b""
        for t in plan.tensors:
            if t.format is None:
                assert (back.vector(t.name) == source.weights[t.name]).all()
            else:
                whole = quantize(source.weights[t.name], t.format, t.row_exp)
                assert (back.matrix(t.name).dequantized() == whole.dequantized()).all()
                assert (back.matrix(t.name, 8, 16).codes == whole.codes[8:16]).all()


def test_the_file_is_a_plain_safetensors_file(source: Memory, tmp_path: Path) -> None:
    plan, out = plan_of(source, "q4g32"), tmp_path / "q.safetensors"
    work.write_quantized(source, plan, out)
    with safe_open(out, "np") as file:
        assert file.get_tensor("layers.1.up.scales").shape == (100, 3)
        assert "nano-build" in file.metadata()


def test_same_input_same_bytes_and_small_chunks_change_nothing(source: Memory, tmp_path: Path, monkeypatch) -> None:
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    first = work.write_quantized(source, plan_of(source), a)
    monkeypatch.setattr(work, "_CHUNK", 16 * 72)
    assert work.write_quantized(source, plan_of(source), b) == first
    assert a.read_bytes() == b.read_bytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_bad_weights_are_named_and_counted(source: Memory, value: float) -> None:
    source.weights["layers.1.gate"][3, 5:7] = value
    with pytest.raises(InputError, match=r"layers\.1\.gate: 2 weights") as caught:
        plan_of(source)
    assert caught.value.code == "E_CKPT_NONFINITE"


def test_outputs_that_must_not_be_written(tmp_path: Path) -> None:
    old, link = tmp_path / "old", tmp_path / "link"
    old.write_bytes(b"x")
    link.symlink_to(old)
    hard = tmp_path / "hard"
    os.link(old, hard)
    for out, force, inputs, code in [
        (old, False, (), "E_OUT_EXISTS"),
        (old, True, (old,), "E_OUT_IS_INPUT"),
        (link, True, (old,), "E_OUT_IS_INPUT"),
        (hard, True, (old,), "E_OUT_IS_INPUT"),
        (tmp_path / "none" / "x", False, (), "E_OUT_FOLDER"),
    ]:
        with pytest.raises(UsageError) as caught:
            check_output(out, force=force, inputs=inputs)
        assert caught.value.code == code


def test_a_full_disk_leaves_nothing(source: Memory, tmp_path: Path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(work, "_write_matrix", full)
    with pytest.raises(ResourceError) as caught:
        work.write_quantized(source, plan_of(source), tmp_path / "q.safetensors")
    assert caught.value.code == "E_DISK_FULL"
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing_and_keeps_the_old_file(source: Memory, tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "q.safetensors"
    out.write_bytes(b"old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(work, "_write_matrix", interrupted)
    with pytest.raises(KeyboardInterrupt):
        work.write_quantized(source, plan_of(source), out)
    assert [p.name for p in tmp_path.iterdir()] == ["q.safetensors"]
    assert out.read_bytes() == b"old"


def test_every_cut_of_the_file_is_refused(source: Memory, tmp_path: Path) -> None:
    out = tmp_path / "q.safetensors"
    work.write_quantized(source, plan_of(source), out)
    data = out.read_bytes()
    for size in [*range(0, len(data), 4096), len(data) - 1]:
        out.write_bytes(data[:size])
        with pytest.raises(NanoBuildError):
            QuantizedCheckpoint(out)
