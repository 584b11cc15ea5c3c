# SPDX-License-Identifier: Apache-2.0
"""model.nano: what is written is read back, and damage of any kind is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nanobuild import packing
from nanobuild.errors import InputError, IntegrityError
from nanobuild.formats import Format, quantize, row_exponent_for
from nanobuild.modelfile import PAGE, ModelFile, Tensor, write_model
from nanobuild.spec import Layer, ModelSpec, Rope

SPEC = ModelSpec(
    family="test", hidden=48, ffn=80, heads=3, kv_heads=1, head_dim=16, vocab=70, max_positions=512, norm_eps=0.125,
    activation="gelu_tanh", attn_scale=0.25, embed_scale=3.5, qk_norm=True, post_norms=True, tied=False,
    ropes=(Rope(inv_freq=(1.0, 0.5)), Rope(inv_freq=(0.25,))),
    layers=(Layer(rope=0, window=8), Layer(rope=1, window=0)),
)  # fmt: skip


def tensors() -> tuple[list[Tensor], dict]:
    rng, out, values = np.random.default_rng(0), [], {}
    for i, (name, shape) in enumerate(SPEC.tensor_shapes().items()):
        w = rng.standard_normal(shape).astype(np.float32)
        if len(shape) == 1:
            values[name] = w
            out.append(
                Tensor(name=name, format=None, rows=1, cols=shape[0], row_exp=0, pieces=lambda w=w: iter([w.tobytes()]))
            )
            continue
        fmt = (Format(bits=4, group=16), Format(bits=4, group=64), Format(bits=8, group=32))[i % 3]
        q = quantize(w, fmt, row_exponent_for(fmt, float(np.abs(w).max())))
        values[name] = q
        data = packing.pack(q).tobytes()
        rows, cols = shape
        out.append(
            Tensor(
                name=name,
                format=fmt,
                rows=rows,
                cols=cols,
                row_exp=q.row_exp,
                pieces=lambda d=data: iter([d[:64], d[64:]]),
            )
        )
    return out, values


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.nano"
    write_model(path, SPEC, tensors()[0], tokenizer=b"tok" * 30_000, chat=b"", meta={"family": "test", "recipe": "x"})
    return path


def test_round_trip(model: Path) -> None:
    file, (_, values) = ModelFile(model), tensors()
    assert file.spec == SPEC
    assert file.section("TOKN") == b"tok" * 30_000
    assert file.section("CHAT") == b""
    assert file.meta["recipe"] == "x"
    for name, value in values.items():
        back = file.load(name)
        if isinstance(value, np.ndarray):
            assert (back == value).all()
        else:
            assert (back.dequantized() == value.dequantized()).all()
    file.verify()


def test_same_input_same_bytes(model: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.nano"
    write_model(again, SPEC, tensors()[0], tokenizer=b"tok" * 30_000, chat=b"", meta={"recipe": "x", "family": "test"})
    assert again.read_bytes() == model.read_bytes()


def test_sections_are_aligned(model: Path) -> None:
    file = ModelFile(model)
    assert all(offset % PAGE == 0 for offset, _, _ in file._sections.values())
    assert all(r.offset % 64 == 0 for r in file.records.values())


def test_every_cut_is_refused(model: Path) -> None:
    data = model.read_bytes()
    for size in [0, 1, 63, 64, *range(4096, len(data), 4096), len(data) - 1]:
        model.write_bytes(data[:size])
        with pytest.raises(IntegrityError, match="bytes"):
            ModelFile(model)
    model.write_bytes(data + b"\0")
    with pytest.raises(IntegrityError):
        ModelFile(model)


def test_every_flipped_header_bit_is_refused(model: Path) -> None:
    data = bytearray(model.read_bytes())
    for at in range(64 + 7 * 32):
        data[at] ^= 1 << at % 8
        model.write_bytes(data)
        with pytest.raises((InputError, IntegrityError)):
            ModelFile(model)
        data[at] ^= 1 << at % 8


@pytest.mark.parametrize("at", [0, 31, 100, 2000, PAGE])
def test_verify_finds_a_flipped_weight_and_names_it(model: Path, at: int) -> None:
    data = bytearray(model.read_bytes())
    data[PAGE + at % 6000] ^= 0x10
    model.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"tensor|block"):
        ModelFile(model).verify()


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.nano"
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(InputError) as caught:
        ModelFile(path)
    assert caught.value.code == "E_MODEL_MAGIC"
