# SPDX-License-Identifier: Apache-2.0
"""The model in plain float32, the yardstick of `eval`: the checkpoint's own weights, whole windows, no quantization.

Layer by layer: a layer's weights are read once, used on every window and dropped, so that memory is one layer, the
hidden states, and at the end the head. The rounding order is BLAS's; nothing here is part of the bit-exact contract.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from nanobuild.errors import InputError
from nanobuild.progress import Progress, silent
from nanobuild.spec import Layer, ModelSpec

F32 = npt.NDArray[np.float32]


class WeightSource(Protocol):
    """What is needed of a checkpoint: its feature record and its tensors as float32."""

    @property
    def spec(self) -> ModelSpec: ...

    def read(self, name: str, start: int = 0, stop: int | None = None) -> F32: ...


def float_logits(
    source: WeightSource, windows: Sequence[Sequence[int]], *, progress: Progress = silent
) -> Iterator[F32]:
    """Yields the logits (tokens, vocab) of each window of token ids, in order; positions start at 0 in every window.

    Raises InputError E_EVAL_IDS for an empty window, an id outside the vocabulary, or a window beyond the context.
    """
    spec = source.spec
    ids = [np.asarray(window, dtype=np.int64) for window in windows]
    for window in ids:
        if not 0 < len(window) <= spec.max_positions:
            raise InputError("E_EVAL_IDS", "", f"window of {len(window)} tokens, allowed 1 to {spec.max_positions}")
        if window.min() < 0 or window.max() >= spec.vocab:
            raise InputError("E_EVAL_IDS", "", f"token id outside the vocabulary of {spec.vocab}")
    embed = source.read("embed")
    states = [embed[window] * np.float32(spec.embed_scale) for window in ids]
    del embed
    longest = max((len(window) for window in ids), default=0)
    turns = [_turns(rope.inv_freq, longest) for rope in spec.ropes]
    prefixes = [f"layers.{i}." for i in range(len(spec.layers))]
    for i, (prefix, layer) in enumerate(zip(prefixes, spec.layers, strict=True)):
        progress("float model", i, len(prefixes))
        weights = {
            name.removeprefix(prefix): source.read(name) for name in spec.tensor_shapes() if name.startswith(prefix)
        }
        states = [_layer(spec, layer, weights, turns[layer.rope], x) for x in states]
    progress("float model", len(prefixes), len(prefixes))
    norm, head = source.read("final_norm"), source.read("embed" if spec.tied else "head")
    for x in states:
        yield _rms_norm(x, norm, spec.norm_eps) @ head.T


def _turns(inv_freq: Sequence[float], length: int) -> tuple[F32, F32]:
    """Cosine and sine of every position's angles, each (length, len(inv_freq))."""
    angles = np.arange(length, dtype=np.float32)[:, None] * np.asarray(inv_freq, dtype=np.float32)
    return np.cos(angles), np.sin(angles)


def _rms_norm(x: F32, weight: F32, eps: float) -> F32:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps))
    return np.asarray(x * scale * weight, dtype=np.float32)


def _rotate(x: F32, turns: tuple[F32, F32]) -> F32:
    """Rotary positions on x (tokens, heads, head_dim): channel i turns with channel i + half; later ones stay."""
    cos, sin = (t[: len(x), None, :] for t in turns)
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def _attention(spec: ModelSpec, window: int, q: F32, k: F32, v: F32) -> F32:
    """Causal attention within one window; q (tokens, heads, head_dim), k and v (tokens, kv_heads, head_dim)."""
    tokens = len(q)
    group = spec.heads // spec.kv_heads
    back = np.arange(tokens)[:, None] - np.arange(tokens)[None, :]  # how far key j lies behind query i
    seen = (back >= 0) & (back < window) if window else back >= 0
    # (kv_heads, group, tokens, head_dim) against (kv_heads, 1, head_dim, tokens)
    queries = q.reshape(tokens, spec.kv_heads, group, spec.head_dim).transpose(1, 2, 0, 3)
    scores = queries @ k.transpose(1, 2, 0)[:, None]
    scores *= np.float32(spec.attn_scale)
    scores += np.where(seen, np.float32(0), np.float32(-np.inf))
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    mixed = scores @ v.transpose(1, 0, 2)[:, None]
    return mixed.transpose(2, 0, 1, 3).reshape(tokens, spec.heads * spec.head_dim).astype(np.float32, copy=False)


def _activate(spec: ModelSpec, x: F32) -> F32:
    if spec.activation == "silu":
        with np.errstate(over="ignore"):  # exp(-x) may overflow to infinity: x / inf is the right 0
            return np.asarray(x / (1 + np.exp(-x)), dtype=np.float32)
    inner = np.float32(0.7978845608) * (x + np.float32(0.044715) * x * x * x)
    return np.asarray(np.float32(0.5) * x * (1 + np.tanh(inner)), dtype=np.float32)


def _layer(spec: ModelSpec, layer: Layer, weights: dict[str, F32], turns: tuple[F32, F32], x: F32) -> F32:
    """One layer on one window: x (tokens, hidden) to the same shape."""
    y = _rms_norm(x, weights["attn_norm"], spec.norm_eps)
    q = (y @ weights["q"].T).reshape(len(x), spec.heads, spec.head_dim)
    k = (y @ weights["k"].T).reshape(len(x), spec.kv_heads, spec.head_dim)
    v = (y @ weights["v"].T).reshape(len(x), spec.kv_heads, spec.head_dim)
    if spec.qk_norm:
        q, k = _rms_norm(q, weights["q_norm"], spec.norm_eps), _rms_norm(k, weights["k_norm"], spec.norm_eps)
    y = _attention(spec, layer.window, _rotate(q, turns), _rotate(k, turns), v) @ weights["o"].T
    if spec.post_norms:
        y = _rms_norm(y, weights["attn_post_norm"], spec.norm_eps)
    x = x + y
    y = _rms_norm(x, weights["ffn_norm"], spec.norm_eps)
    y = (_activate(spec, y @ weights["gate"].T) * (y @ weights["up"].T)) @ weights["down"].T
    if spec.post_norms:
        y = _rms_norm(y, weights["ffn_post_norm"], spec.norm_eps)
    return x + y
