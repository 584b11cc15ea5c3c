# SPDX-License-Identifier: Apache-2.0
"""Rotation frequencies from a configuration, in float32 with a rounding after every step.

Powers are taken in double and rounded once, so that they do not depend on the CPU's float32 power function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nanobuild.errors import InputError
from nanobuild.families.base import MAX_HEAD_DIM, MAX_POSITIONS, Keys
from nanobuild.rawfile import FloatArray, WeightSource
from nanobuild.spec import Rope

_TYPES = "default, linear, llama3"
_HUGE = 1e15


def plain(head_dim: int, theta: float) -> FloatArray:
    """theta ** (-2i / head_dim) for i < head_dim / 2, as float32."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    powers = np.array([math.pow(theta, float(e)) for e in exponents], np.float32)
    return np.float32(1) / powers


def llama3(freq: FloatArray, *, factor: float, low: float, high: float, original: int) -> FloatArray:
    """Llama 3's scaling: long waves by `factor`, short ones not at all, a ramp in between."""
    one, factor32, low32, high32 = (np.float32(x) for x in (1, factor, low, high))
    wavelength = np.float32(2 * math.pi) / freq
    smooth = (np.float32(original) / wavelength - low32) / (high32 - low32)
    ramp = (one - smooth) * freq / factor32 + smooth * freq
    long_wave, short_wave = wavelength > np.float32(original / low), wavelength < np.float32(original / high)
    out = np.where(long_wave, freq / factor32, np.where(short_wave, freq, ramp))
    return out.astype(np.float32)


def to_rope(freq: FloatArray) -> Rope:
    """The record's form of the frequencies."""
    return Rope(inv_freq=tuple(float(f) for f in freq))


def check_head_dim(keys: Keys, head_dim: int, key: str) -> int:
    """`head_dim` when it is in range and even. Raises InputError otherwise."""
    if not 2 <= head_dim <= MAX_HEAD_DIM or head_dim % 2:
        raise keys.fail(keys.codes.value, key, f"is {head_dim}, allowed are the even numbers from 2 to {MAX_HEAD_DIM}")
    return head_dim


def from_hf_part(part: Keys, head_dim: int, theta: float) -> Rope:
    """Frequencies from one rope_scaling or rope_parameters object; `theta` is used when it names none."""
    old, new = part.get("type"), part.get("rope_type")
    kind = new if new is not None else old if old is not None else "default"
    if old is not None and old != kind:
        raise part.fail(part.codes.inconsistent, "type", f"is {old!r} and rope_type is {kind!r}"[:80])
    freq = plain(head_dim, part.number("rope_theta", 1.0, _HUGE, theta))
    part.refuse_unless({"partial_rotary_factor": (1.0, 1)})
    if kind == "linear":
        freq = freq / np.float32(part.number("factor", 1e-3, 1e6))
    elif kind == "llama3":
        low, high = part.number("low_freq_factor", 1e-3, 1e6), part.number("high_freq_factor", 1e-3, 1e6)
        if low >= high:
            raise part.fail(part.codes.inconsistent, "low_freq_factor", f"is {low:g}, not below {high:g}")
        original = part.integer("original_max_position_embeddings", 1, MAX_POSITIONS)
        freq = llama3(freq, factor=part.number("factor", 1e-3, 1e6), low=low, high=high, original=original)
    elif kind == "default":
        part.refuse_unless({"factor": (1.0, 1)})
    else:
        raise part.unsupported("rope_type", kind, _TYPES)
    part.refuse_unread()
    return to_rope(freq)


def from_hf(keys: Keys, head_dim: int, default_theta: float) -> Rope:
    """Frequencies from rope_parameters or, in older files, from rope_theta and rope_scaling."""
    theta = keys.number("rope_theta", 1.0, _HUGE, default_theta)
    new, old = keys.part("rope_parameters"), keys.part("rope_scaling")
    ropes = [from_hf_part(part, head_dim, theta) for part in (new, old) if part is not None]
    if not ropes:
        return to_rope(plain(head_dim, theta))
    if ropes[0] != ropes[-1]:
        raise keys.fail(keys.codes.inconsistent, "rope_scaling", "and rope_parameters say different things")
    return ropes[0]


def from_gguf(keys: Keys, weights: WeightSource, head_dim: int, theta: float) -> Rope:
    """Frequencies from GGUF metadata, divided by the rope_freqs.weight factors where the file has them."""
    rotated = keys.integer("rope.dimension_count", 2, MAX_HEAD_DIM, head_dim)
    if rotated != head_dim:
        raise keys.unsupported("rope.dimension_count", rotated, f"{head_dim} (all of a head)")
    freq = plain(head_dim, theta) / np.float32(gguf_linear_factor(keys))
    factors = weights.tensors.get("rope_freqs.weight")
    if factors is not None:
        if factors.shape != (head_dim // 2,):
            text = f"tensor rope_freqs.weight has the shape {list(factors.shape)}, needed is [{head_dim // 2}]"
            raise InputError("E_CKPT_SHAPE", keys.subject, text)
        values = weights.read_rows("rope_freqs.weight", 0, head_dim // 2)
        if not ((values >= 1e-6) & (values <= 1e6)).all():
            text = "tensor rope_freqs.weight holds a factor outside 1e-06 to 1e+06"
            raise InputError(keys.codes.value, keys.subject, text)
        freq = freq / values
    return to_rope(freq)


def gguf_linear_factor(keys: Keys) -> float:
    """The factor of linear scaling, 1 without scaling. Refuses every other type by name."""
    kind = keys.text("rope.scaling.type", "linear")
    factor = keys.number("rope.scaling.factor", 0.0, 1e6, keys.number("rope.scale_linear", 0.0, 1e6, 1.0))
    for key in ("rope.scaling.original_context_length", "rope.scaling.finetuned"):
        keys.get(key)
    if kind not in ("none", "linear"):
        raise keys.unsupported("rope.scaling.type", kind, "none, linear")
    return factor if kind == "linear" and factor != 0 else 1.0


def share(ropes: Sequence[Rope]) -> tuple[tuple[Rope, ...], list[int]]:
    """Equal ropes once, and for every given one its place among them."""
    unique = list(dict.fromkeys(ropes))
    return tuple(unique), [unique.index(rope) for rope in ropes]
