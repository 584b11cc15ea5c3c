# SPDX-License-Identifier: Apache-2.0
"""The reference arithmetic against double precision, and the properties the contract promises."""

from __future__ import annotations

import numpy as np
import pytest

from nanobuild import reference as ref
from nanobuild.formats import Format, quantize, row_exponent_for
from nanobuild.spec import Layer, ModelSpec, Rope


def ulps(value: np.ndarray, exact: np.ndarray) -> float:
    return float(np.max(np.abs(value - exact) / np.spacing(np.abs(exact).astype(np.float32))))


def test_exp() -> None:
    x = np.linspace(-87, 88, 200_001, dtype=np.float32)
    assert ulps(ref.exp(x), np.exp(x.astype(np.float64))) < 1.1
    assert ref.exp(np.zeros(1, np.float32))[0] == 1
    assert np.isfinite(ref.exp(np.array([-1e30, 1e30], np.float32))).all()


@pytest.mark.parametrize("scale", [1.0, 3000.0, 131072.0])
def test_sincos(scale: float) -> None:
    a = (np.random.default_rng(0).random(50_000) * scale).astype(np.float32)
    sin, cos = ref.sincos(a)
    assert np.abs(sin - np.sin(a.astype(np.float64))).max() < 6.1e-8
    assert np.abs(cos - np.cos(a.astype(np.float64))).max() < 6.1e-8


@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
def test_activations(name: str) -> None:
    x = np.linspace(-20, 20, 40_001, dtype=np.float32)
    d = x.astype(np.float64)
    exact = {
        "silu": d / (1 + np.exp(-d)),
        "gelu_tanh": 0.5 * d * (1 + np.tanh(np.sqrt(2 / np.pi) * (d + 0.044715 * d**3))),
    }[name]
    assert np.abs(getattr(ref, name)(x) - exact).max() < 2e-6


@pytest.mark.parametrize("n", [1, 15, 16, 17, 64, 576, 577])
def test_lanes_follow_the_stated_order(n: int) -> None:
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    lanes = [np.float32(0)] * 16
    for i, value in enumerate(x):
        lanes[i % 16] = np.float32(lanes[i % 16] + value)
    for width in (8, 4, 2, 1):
        lanes = [np.float32(lanes[i] + lanes[i + width]) for i in range(width)]
    assert ref.lanes_sum(x) == lanes[0]


def test_activation_blocks_round_half_to_even_and_keep_zeros() -> None:
    x = np.zeros((1, 40), np.float32)
    x[0, :4] = [127, 0.5, 1.5, -2.5]
    q, scale = ref.quantize_blocks(x)
    assert q.shape == (1, 2, 32)
    assert q[0, 0, :4].tolist() == [127, 0, 2, -2]
    assert scale.tolist() == [[1.0, 0.0]]


def test_matmul_is_close_to_floats_and_independent_of_the_batch() -> None:
    rng = np.random.default_rng(3)
    w = (rng.standard_normal((48, 200)) * 0.1).astype(np.float32)
    x = rng.standard_normal((7, 200)).astype(np.float32)
    fmt = Format(bits=8, group=64)
    q = quantize(w, fmt, row_exponent_for(fmt, float(np.abs(w).max())))
    y = ref.matmul(x, q)
    exact = x.astype(np.float64) @ w.T.astype(np.float64)
    assert np.abs(y - exact).max() < 0.02 * np.abs(exact).max()
    assert (ref.matmul(x[2:3], q) == y[2:3]).all()


def tiny(kv: str, window: int = 0) -> ref.Reference:
    rope = Rope(inv_freq=tuple(float(np.float32(1e4 ** (-i / 8))) for i in range(8)))
    spec = ModelSpec(
        family="test", hidden=48, ffn=80, heads=4, kv_heads=2, head_dim=16, vocab=50, max_positions=1024, norm_eps=1e-5,
        activation="silu", attn_scale=0.25, embed_scale=1.0, qk_norm=True, post_norms=True, tied=True, ropes=(rope,),
        layers=(Layer(rope=0, window=window), Layer(rope=0, window=0)),
    )  # fmt: skip
    rng, weights = np.random.default_rng(5), {}
    for name, shape in spec.tensor_shapes().items():
        value = rng.standard_normal(shape).astype(np.float32)
        if len(shape) == 1:
            weights[name] = 1 + 0.1 * value
        else:
            fmt = Format(bits=4, group=16)
            weights[name] = quantize(value, fmt, row_exponent_for(fmt, float(np.abs(value).max())))
    return ref.Reference(spec, weights, kv)


@pytest.mark.parametrize("kv", ["f16", "i8"])
def test_any_split_of_the_prompt_gives_the_same_bits(kv: str) -> None:
    ids = np.random.default_rng(1).integers(0, 50, 21).tolist()
    whole = tiny(kv).forward(ids)
    for step in (1, 4, 20):
        model = tiny(kv)
        parts = [model.forward(ids[i : i + step]) for i in range(0, len(ids), step)]
        assert (np.concatenate(parts) == whole).all()


def test_a_window_changes_only_what_lies_beyond_it() -> None:
    ids = np.random.default_rng(2).integers(0, 50, 12).tolist()
    full, cut = tiny("f16").forward(ids), tiny("f16", window=6).forward(ids)
    assert (full[:6] == cut[:6]).all()
    assert (full[6:] != cut[6:]).any(axis=1).all()
