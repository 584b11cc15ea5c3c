# SPDX-License-Identifier: Apache-2.0
"""The scalar kernels (the answer in C) against nanobuild/reference.py (the answer in numpy): the same bits."""

from __future__ import annotations

import ctypes as ct
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanobuild import formats, packing, reference

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
TILE = 16
F32 = np.float32

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="little-endian x86-64")


NUMBERS = ("rows", "cols", "panels", "blocks", "groups", "code_offset", "group_shift", "format")


class Mat(ct.Structure):
    _fields_ = [
        ("data", ct.c_void_p),
        ("panel_stride", ct.c_size_t),
        *((name, ct.c_uint32) for name in NUMBERS),
        ("row_mul", ct.c_float),
        ("table", ct.c_int8 * 16),
    ]


class Act(ct.Structure):
    _fields_ = [
        *((name, ct.c_void_p) for name in ["q", "scale", "bias"]),
        *((name, ct.c_uint32) for name in ["blocks", "tile", "tokens"]),
    ]


class Kv(ct.Structure):
    _fields_ = [
        *((name, ct.c_void_p) for name in ["k", "v", "k_scale", "v_scale"]),
        *((name, ct.c_uint32) for name in ["type", "head_dim"]),
    ]


class Attention(ct.Structure):
    _fields_ = [
        *(("q", ct.c_void_p), ("ldq", ct.c_size_t)),
        *((name, ct.c_uint32) for name in ["heads", "tokens"]),
        *((name, ct.c_void_p) for name in ["seen_from", "seen_to"]),
        *((name, ct.c_float) for name in ["scale", "cap"]),
        *((name, ct.c_void_p) for name in ["scores", "max", "sum", "out"]),
        ("ldo", ct.c_size_t),
    ]


@pytest.fixture(scope="module")
def ops(tmp_path_factory: pytest.TempPathFactory) -> Any:
    gcc = shutil.which("gcc") or shutil.which("cc")
    if gcc is None:
        pytest.skip("no C compiler")
    out = tmp_path_factory.mktemp("ops") / "ops.so"
    flags = ["-O2", "-std=gnu17", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared", "-I."]
    sources = [str(path) for path in sorted(KERNELS.glob("ops/scalar/*.c"))]
    subprocess.run([gcc, *flags, *sources, "-o", str(out), "-lm"], cwd=KERNELS, check=True, timeout=120)
    return ct.CDLL(str(out))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def at(x: np.ndarray) -> ct.c_void_p:
    assert x.flags.c_contiguous
    return ct.c_void_p(x.ctypes.data)


def same(have: np.ndarray, want: np.ndarray) -> None:
    assert have.dtype == want.dtype == F32
    bits = (np.ascontiguousarray(x).view(np.uint32) for x in (have, want))
    np.testing.assert_array_equal(*bits)


def spread(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Floats over many binades, some of them zero."""
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 6, shape)
    return np.where(rng.random(shape) < 0.05, 0, x).astype(F32)


def matrix(q: formats.Quantized) -> tuple[Mat, np.ndarray]:
    rows, cols = q.codes.shape
    data = packing.pack(q)
    w = Mat(
        data=data.ctypes.data,
        panel_stride=data.shape[1],
        rows=rows,
        cols=cols,
        panels=data.shape[0],
        blocks=-(-cols // 32),
        groups=q.format.groups(cols),
        code_offset=packing.code_offset(q.format, cols),
        group_shift={16: 0, 32: 0, 64: 1, 128: 2}[q.format.group],
        format=packing.format_id(q.format),
        row_mul=2.0**q.row_exp,
    )
    if q.format.bits == 4:
        w.table[:] = formats.TABLE4
    return w, data


def activations(ops: Any, x: np.ndarray, tile: int) -> tuple[Act, tuple[np.ndarray, ...]]:
    tokens, cols = x.shape
    blocks = -(-cols // 32)
    entries = -(-tokens // tile) * tile * blocks
    parts = (np.zeros((entries, 32), np.int8), np.zeros(entries, F32), np.zeros(entries, np.int32))
    a = Act(*(part.ctypes.data for part in parts), blocks, tile, tokens)
    for t in range(tokens):
        ops.nb_quantize_q8b32_f32__scalar(ct.byref(a), t, 0, blocks, at(x[t]), cols)
    return a, parts


def test_quantize(ops: Any, rng: np.random.Generator) -> None:
    x = spread(rng, 3, 100)
    x[1, 32:64] = F32(1e-35)  # a block below the limit: zeros, scale 0
    _, (q, scale, bias) = activations(ops, x, 1)
    want_q, want_scale = reference.quantize_blocks(x)
    np.testing.assert_array_equal(q.reshape(3, 4, 32), want_q)
    same(scale.reshape(3, 4), want_scale)
    np.testing.assert_array_equal(bias.reshape(3, 4), -64 * want_q.sum(axis=2))


@pytest.mark.parametrize("name", ["q4g16s8", "q4g32s8", "q4g64s8", "q4g128s8", "q8g32s8", "q8g64s8", "q8g128s8"])
@pytest.mark.parametrize(("rows", "cols"), [(16, 32), (37, 272), (5, 48), (33, 200)])
def test_products_and_embedding(ops: Any, rng: np.random.Generator, name: str, rows: int, cols: int) -> None:
    fmt = formats.parse_format(name)
    weights = spread(rng, rows, cols)
    q = formats.quantize(weights, fmt, formats.row_exponent_for(fmt, float(np.abs(weights).max())))
    w, keep = matrix(q)
    x = spread(rng, 18, cols)
    want = reference.matmul(x, q)
    kind = {1: "q4g16s8", 2: "q4g32s8", 3: "q8g32s8"}[w.format]
    ldy = 16 * w.panels
    for op, tile in (("gemv", 1), ("gemm", TILE)):
        a, parts = activations(ops, x, tile)
        y = np.zeros((18, ldy), F32)
        fn = getattr(ops, f"nb_{op}_f32_q8b32_{kind}p16x4__scalar")
        fn(ct.byref(w), ct.byref(a), at(y), ct.c_size_t(ldy), 0, w.panels, 0, -(-18 // tile))
        same(y[:, :rows], want)
        del parts
    y = np.zeros(cols, F32)
    for row in (0, rows - 1):
        ops.nb_embed_f32_p16x4__scalar(at(y), ct.byref(w), row, ct.c_float(1.5))
        same(y, reference.embed([row], q, 1.5)[0])
    del keep


def test_rmsnorm(ops: Any, rng: np.random.Generator) -> None:
    for n in (1, 15, 16, 100, 576):
        x, w, y = spread(rng, n), spread(rng, n), np.zeros(n, F32)
        ops.nb_rmsnorm_f32_f32_f32__scalar(at(y), at(x), at(w), n, ct.c_float(1e-5))
        same(y, reference.rmsnorm(x, w, 1e-5))


def test_rope(ops: Any, rng: np.random.Generator) -> None:
    inv_freq = [10000.0 ** (-i / 24) for i in range(24)]
    x = spread(rng, 1, 3, 64)
    want = reference.rope(x, [12345], inv_freq)
    sin, cos = reference.sincos(np.array([12345], F32)[:, None] * np.array(inv_freq, F32)[None, :])
    y = x.copy()
    ops.nb_rope_f32_f32__scalar(at(y), 3, 64, 48, at(np.ascontiguousarray(cos)), at(np.ascontiguousarray(sin)))
    same(y, want)


def test_gated_and_add(ops: Any, rng: np.random.Generator) -> None:
    gate, up = spread(rng, 4000), spread(rng, 4000)
    gate[:1000] = np.linspace(-120, 120, 1000, dtype=F32)
    y = np.zeros(4000, F32)
    ops.nb_silu_mul_f32_f32_f32__scalar(at(y), at(gate), at(up), 4000)
    same(y, reference.silu(gate) * up)
    with np.errstate(over="ignore"):
        ops.nb_gelu_mul_f32_f32_f32__scalar(at(y), at(gate), at(up), 4000)
        same(y, reference.gelu_tanh(gate) * up)
    y[:] = gate
    ops.nb_add_f32_f32__scalar(at(y), at(up), 4000)
    same(y, gate + up)


@pytest.mark.parametrize(("kind", "dim"), [("f16", 64), ("f16", 24), ("i8", 64), ("i8", 24)])
@pytest.mark.parametrize(("last", "window", "cap"), [(20, 0, 0), (300, 0, 0), (600, 0, 0), (600, 270, 0), (300, 0, 50)])
def test_attention(ops: Any, rng: np.random.Generator, kind: str, dim: int, last: int, window: int, cap: float) -> None:
    heads, ctx = 3, last + 1
    k, v, q = spread(rng, ctx, dim), spread(rng, ctx, dim), spread(rng, heads, dim)
    cache = reference.KvCache(kind)
    stored = np.uint16 if kind == "f16" else np.int8
    memory = [np.zeros((ctx, dim), stored), np.zeros((ctx, dim), stored), np.zeros(ctx, F32), np.zeros(ctx, F32)]
    kv = Kv(*(m.ctypes.data for m in memory), 0 if kind == "f16" else 1, dim)
    store = getattr(ops, f"nb_kv_store_{kind}_f32__scalar")
    for p in range(ctx):
        cache.store(k[p : p + 1], v[p : p + 1])
        store(ct.byref(kv), p, at(k[p]), at(v[p]))
    scale = F32(dim**-0.5)
    first = max(0, last - window + 1) if window else 0
    bounds = [first, *range((first // 256 + 1) * 256, last + 1, 256), last + 1]
    n = len(bounds) - 1
    top, total, out = np.zeros((n, heads), F32), np.zeros((n, heads), F32), np.zeros((n, heads, dim), F32)
    scores = np.zeros((heads, 256), F32)
    attend = getattr(ops, f"nb_attend_f32_f32_{kind}__scalar")
    for r in range(n):
        seen = np.array([[bounds[r]], [bounds[r + 1]]], np.uint32)
        results = (part.ctypes.data for part in (scores, top[r], total[r], out[r]))
        limits = (seen[0].ctypes.data, seen[1].ctypes.data)
        attend(ct.byref(kv), ct.byref(Attention(q.ctypes.data, 0, heads, 1, *limits, scale, cap, *results, 0)))
    y = np.zeros((heads, dim), F32)
    for h in range(heads):
        m, s = np.ascontiguousarray(top[:, h]), np.ascontiguousarray(total[:, h])
        ops.nb_attend_join_f32_f32__scalar(at(y[h]), dim, n, at(m), at(s), at(out[0, h]), ct.c_size_t(heads * dim))
    same(y, reference.attend(q, cache, 0, last, window, float(scale), cap))
