# SPDX-License-Identifier: Apache-2.0
"""The arithmetic contract as a program: slow, plain numpy that every kernel equals bit for bit.

Each float operation rounds to float32 on its own; integer sums are exact; float sums follow one stated order.
kernels/hal/hal.h says the same in words. Shapes: T tokens, K columns, N rows, D head channels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from nanobuild.formats import BLOCK, F32, Quantized
from nanobuild.spec import Layer, ModelSpec

F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]

RANGE = 256  # positions that attention sums before ranges are joined
LANES = 16
_MAGIC = np.float32(12582912.0)  # 1.5 * 2^23: adding it rounds to an integer, half to even
_MAGIC_BITS = np.int32(0x4B400000)
_TINY = np.float32(2.0**-100)
# coefficients of fdlibm's kernel_sin and kernel_cos, highest order first, without the first of each
_SIN = (
    -2.50507602534068634195e-08,
    2.75573137070700676789e-06,
    -1.98412698298579493134e-04,
    8.33333333332248946124e-03,
    -1.66666666666666324348e-01,
)
_COS = (
    2.08757232129817482790e-09,
    -2.75573143513906633035e-07,
    2.48015872894767294178e-05,
    -1.38888888888741095749e-03,
    4.16666666666666019037e-02,
)


def f32(x: float) -> np.float32:
    """A float32 constant."""
    return np.float32(x)


def round_to_int(x: F32) -> I32:
    """Round half to even for |x| < 2^22, without a float-to-int cast."""
    return (x + _MAGIC).astype(np.float32).view(np.int32) - _MAGIC_BITS


def exp(x: F32) -> F32:
    """e^x, x clamped to [-87, 88]; error below 1.1 ulp. exp(0) is 1 exactly."""
    x = np.minimum(np.maximum(x.astype(np.float32), f32(-87)), f32(88))
    t = x * f32(1.44269504) + _MAGIC
    n = t - _MAGIC
    k = t.view(np.int32) - _MAGIC_BITS
    r = x - n * f32(0.693359375)
    r = r - n * f32(-2.12194440e-4)
    p = np.full_like(x, f32(1.9875691500e-4))
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + f32(c)
    y = p * (r * r)
    y = y + r
    y = y + f32(1)
    return np.asarray(y * ((k + np.int32(127)) << np.int32(23)).view(np.float32), np.float32)


def silu(x: F32) -> F32:
    """x / (1 + exp(-x))."""
    return np.asarray(x / (f32(1) + exp(-x)), np.float32)


def gelu_tanh(x: F32) -> F32:
    """x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3): the tanh form of GELU."""
    cubic = (x * x) * x
    u = f32(0.7978845608) * (x + f32(0.044715) * cubic)
    return np.asarray(x / (f32(1) + exp(f32(-2) * u)), np.float32)


def lanes_sum(x: F32) -> F32:
    """Sum over the last axis in 16 virtual lanes, then the fixed fold 8, 4, 2, 1."""
    return _fold(_into_lanes(x))


def _into_lanes(x: F32, first: int = 0) -> F32:
    """Element i goes to lane (first + i) % 16, in increasing i."""
    lanes = np.zeros((*x.shape[:-1], LANES), np.float32)
    position, end = first, first + x.shape[-1]
    while position < end:
        lane = position % LANES
        take = min(LANES - lane, end - position)
        at = position - first
        lanes[..., lane : lane + take] += x[..., at : at + take]
        position += take
    return lanes


def _fold(lanes: F32) -> F32:
    width = LANES
    while width > 1:
        width //= 2
        lanes = lanes[..., :width] + lanes[..., width : 2 * width]
    return np.asarray(lanes[..., 0], np.float32)


def rmsnorm(x: F32, weight: F32, eps: float) -> F32:
    """(..., n): fl(fl(x * inv) * weight) with inv = 1 / sqrt(mean of squares + eps)."""
    mean = lanes_sum(x * x) / f32(x.shape[-1])
    inv = f32(1) / np.sqrt(mean + f32(eps))
    return np.asarray((x * inv[..., None]) * weight, np.float32)


def sincos(angle: F32) -> tuple[F32, F32]:
    """Sine and cosine of float32 angles, worked out in double and rounded once: (sin, cos)."""
    a = angle.astype(np.float64)
    t = a * 0.63661977236758134308 + 6755399441055744.0
    n = t - 6755399441055744.0
    quadrant = t.view(np.int64) & 3
    r = (a - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11
    z = r * r
    ps: F64 = np.full_like(z, 1.58969099521155010221e-10)
    for c in _SIN:
        ps = ps * z + c
    pc: F64 = np.full_like(z, -1.13596475577881948265e-11)
    for c in _COS:
        pc = pc * z + c
    s = r + (r * z) * ps
    c_ = (1.0 - 0.5 * z) + (z * z) * pc
    sin = np.choose(quadrant, [s, c_, -s, -c_])
    cos = np.choose(quadrant, [c_, -s, -c_, s])
    return sin.astype(np.float32), cos.astype(np.float32)


def rope(x: F32, positions: Sequence[int], inv_freq: Sequence[float]) -> F32:
    """(T, H, D): rotates channel pairs (i, i + R) of the first 2R channels, R = len(inv_freq)."""
    half = len(inv_freq)
    angle = np.array(positions, np.float32)[:, None] * np.array(inv_freq, np.float32)[None, :]
    sin, cos = (a[:, None, :] for a in sincos(angle))
    a, b = x[..., :half], x[..., half : 2 * half]
    out = x.copy()
    out[..., :half] = a * cos - b * sin
    out[..., half : 2 * half] = b * cos + a * sin
    return out


def quantize_blocks(x: F32, block: int = BLOCK) -> tuple[I32, F32]:
    """(T, K) to int8 values (T, blocks, block) and scales (T, blocks); the last block is filled with zeros."""
    t, k = x.shape
    blocks = -(-k // block)
    padded = np.zeros((t, blocks * block), np.float32)
    padded[:, :k] = x
    padded = padded.reshape(t, blocks, block)
    largest = np.abs(padded).max(axis=2)
    dead = largest < _TINY
    safe = np.where(dead, f32(1), largest)
    scale = np.where(dead, f32(0), safe / f32(127)).astype(np.float32)
    inverse = np.where(dead, f32(0), f32(127) / safe).astype(np.float32)
    return round_to_int(padded * inverse[..., None]), scale


def matmul(x: F32, w: Quantized) -> F32:
    """(T, K) times (N, K)^T: int8 activations in blocks of 32, exact block sums, float sums in increasing block."""
    q, scale = quantize_blocks(x)
    rows, cols = w.codes.shape
    blocks = q.shape[1]
    weights = np.zeros((rows, blocks * BLOCK), np.float64)
    weights[:, :cols] = w.scaled_values()
    acc = np.zeros((x.shape[0], rows), np.float32)
    for b in range(blocks):
        # float64 holds these sums exactly: |sum| <= 127 * 127 * 255 * 32 < 2^53
        exact = q[:, b].astype(np.float64) @ weights[:, b * BLOCK : (b + 1) * BLOCK].T
        acc = acc + exact.astype(np.int32).astype(np.float32) * scale[:, b, None]
    return np.asarray(acc * w.row_factors()[None, :], np.float32)


def embed(ids: Sequence[int], w: Quantized, scale: float) -> F32:
    """(T, K): rows of the embedding times a scale."""
    index = np.array(ids, np.int64)
    rows = dataclasses.replace(w, codes=w.codes[index], scales=w.scales[index], row_scales=w.row_scales[index])
    return np.asarray(rows.dequantized() * f32(scale), np.float32)


class KvCache:
    """Keys and values of one layer: float16, or int8 with a scale per position and head."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.k: list[F32] = []  # per position (kv heads, D): what the stored numbers stand for, before any scale
        self.v: list[F32] = []
        self.k_scale: list[F32] = []  # (kv heads,)
        self.v_scale: list[F32] = []

    def store(self, k: F32, v: F32) -> None:
        """Appends one position; k, v: (kv heads, D)."""
        for x, values, scales in ((k, self.k, self.k_scale), (v, self.v, self.v_scale)):
            if self.kind == "f16":
                values.append(x.astype(np.float16).astype(np.float32))
                scales.append(np.ones(x.shape[0], np.float32))
            else:
                q, scale = quantize_blocks(x, x.shape[1])
                values.append(q[:, 0].astype(np.float32))
                scales.append(scale[:, 0])


def softcap(x: F32, cap: float) -> F32:
    """cap * tanh(x / cap), tanh written with exp."""
    u = x / f32(cap)
    e = exp(u + u)
    return np.asarray(f32(cap) * ((e - f32(1)) / (e + f32(1))), np.float32)


def attend(q: F32, cache: KvCache, kv_head: int, position: int, window: int, scale: float, cap: float = 0.0) -> F32:
    """(G, D) queries of one position that share a kv head: softmax(q.k) v in ranges of 256 positions; cap 0: none."""
    first = max(0, position - window + 1) if window else 0
    parts = []
    start = first
    while start <= position:
        stop = min((start // RANGE + 1) * RANGE, position + 1)
        parts.append(_attend_range(q, cache, kv_head, start, stop, scale, cap))
        start = stop
    top = np.max(np.stack([m for m, _, _ in parts]), axis=0)
    total = np.zeros_like(top)
    out = np.zeros_like(parts[0][2])
    for m, part_sum, part_out in parts:
        w = exp(m - top)
        total = total + part_sum * w
        out = out + part_out * w[:, None]
    return np.asarray(out * (f32(1) / total)[:, None], np.float32)


def _attend_range(
    q: F32, cache: KvCache, head: int, start: int, stop: int, scale: float, cap: float
) -> tuple[F32, F32, F32]:
    k = np.stack([cache.k[p][head] for p in range(start, stop)])  # (P, D)
    v = np.stack([cache.v[p][head] for p in range(start, stop)])
    ks = np.array([cache.k_scale[p][head] for p in range(start, stop)], np.float32)
    vs = np.array([cache.v_scale[p][head] for p in range(start, stop)], np.float32)
    if cache.kind == "f16":
        scores = lanes_sum(q[:, None, :] * k[None]) * f32(scale)
    else:
        qi, qs = quantize_blocks(q, q.shape[1])
        dots = (qi[:, 0].astype(np.int64) @ k.astype(np.int64).T).astype(np.int32).astype(np.float32)
        scores = dots * ((qs * ks[None, :]) * f32(scale))
    if cap:
        scores = softcap(np.asarray(scores, np.float32), cap)
    top = scores.max(axis=1) + f32(0)
    e = exp(scores - top[:, None])
    total = _fold(_into_lanes(e, start))
    out = np.zeros_like(q)
    for i in range(stop - start):
        weight = e[:, i] if cache.kind == "f16" else e[:, i] * vs[i]
        out = out + weight[:, None] * v[i][None, :]
    return np.asarray(top, np.float32), total, out


Weights = Mapping[str, Quantized | F32]
_ACTIVATIONS: dict[str, Callable[[F32], F32]] = {"silu": silu, "gelu_tanh": gelu_tanh}


@dataclasses.dataclass(slots=True)
class Reference:
    """A model and the state of one sequence. Weights by canonical name: Quantized matrices, float32 vectors."""

    spec: ModelSpec
    weights: Weights
    kv: str = "f16"
    caches: list[KvCache] = dataclasses.field(default_factory=list)
    position: int = 0

    def __post_init__(self) -> None:
        self.caches = [KvCache(self.kv) for _ in self.spec.layers]

    def matrix(self, name: str) -> Quantized:
        """A matrix by canonical name."""
        w = self.weights[name]
        assert isinstance(w, Quantized)
        return w

    def vector(self, name: str) -> F32:
        """A vector by canonical name."""
        w = self.weights[name]
        assert not isinstance(w, Quantized)
        return w

    def forward(self, ids: Sequence[int]) -> F32:
        """Feeds T tokens and returns logits of all of them, (T, vocab)."""
        spec = self.spec
        x = embed(ids, self.matrix("embed"), spec.embed_scale)
        positions = range(self.position, self.position + len(ids))
        for i, layer in enumerate(spec.layers):
            x = self._layer(f"layers.{i}.", layer, self.caches[i], x, positions)
        self.position += len(ids)
        x = rmsnorm(x, self.vector("final_norm"), spec.norm_eps)
        return matmul(x, self.matrix("embed" if spec.tied else "head"))

    def _layer(self, p: str, layer: Layer, cache: KvCache, x: F32, positions: Sequence[int]) -> F32:
        spec, t = self.spec, len(positions)
        h = rmsnorm(x, self.vector(p + "attn_norm"), spec.norm_eps)
        q = matmul(h, self.matrix(p + "q")).reshape(t, spec.heads, spec.head_dim)
        k = matmul(h, self.matrix(p + "k")).reshape(t, spec.kv_heads, spec.head_dim)
        v = matmul(h, self.matrix(p + "v")).reshape(t, spec.kv_heads, spec.head_dim)
        if spec.qk_norm:
            q = rmsnorm(q, self.vector(p + "q_norm"), spec.norm_eps)
            k = rmsnorm(k, self.vector(p + "k_norm"), spec.norm_eps)
        inv_freq = spec.ropes[layer.rope].inv_freq
        q, k = rope(q, positions, inv_freq), rope(k, positions, inv_freq)
        shared = spec.heads // spec.kv_heads
        out = np.empty_like(q)
        for j, position in enumerate(positions):
            cache.store(k[j], v[j])
            for g in range(spec.kv_heads):
                heads = slice(g * shared, (g + 1) * shared)
                out[j, heads] = attend(q[j, heads], cache, g, position, layer.window, spec.attn_scale)
        o = matmul(out.reshape(t, -1), self.matrix(p + "o"))
        if spec.post_norms:
            o = rmsnorm(o, self.vector(p + "attn_post_norm"), spec.norm_eps)
        x = x + o
        h = rmsnorm(x, self.vector(p + "ffn_norm"), spec.norm_eps)
        gate = _ACTIVATIONS[spec.activation](matmul(h, self.matrix(p + "gate")))
        d = matmul(gate * matmul(h, self.matrix(p + "up")), self.matrix(p + "down"))
        if spec.post_norms:
            d = rmsnorm(d, self.vector(p + "ffn_post_norm"), spec.norm_eps)
        return np.asarray(x + d, np.float32)
