# SPDX-License-Identifier: Apache-2.0
"""The feature record: what a model is, in features and never in brands.

Families turn a checkpoint's configuration into this record; the quantizer, the packer, the reference and the C
runtime know nothing else. Canonical tensor names: ``embed``, ``head`` (absent when tied), ``final_norm`` and, per
layer, ``layers.{i}.`` + one of LAYER_MATRICES or LAYER_VECTORS.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

Activation = Literal["silu", "gelu_tanh"]

LAYER_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
LAYER_VECTORS = ("attn_norm", "ffn_norm", "q_norm", "k_norm", "attn_post_norm", "ffn_post_norm")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rope:
    """One set of rotation frequencies: angle(position, i) = fl32(position * inv_freq[i])."""

    inv_freq: tuple[float, ...]  # (rotated channels / 2), each exactly representable as float32


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """What differs from layer to layer."""

    rope: int  # index into ModelSpec.ropes
    window: int  # positions a query may look back at, itself included; 0 = all


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """Everything that decides the numbers, apart from the weights."""

    family: str  # for people only; nothing may branch on it
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int  # rows of the embedding; may exceed the tokenizer's tokens
    max_positions: int
    norm_eps: float
    activation: Activation
    attn_scale: float  # multiplies q.k
    embed_scale: float  # multiplies the embedding row
    qk_norm: bool  # RMSNorm per head on q and k before the rotation
    post_norms: bool  # RMSNorm on the outputs of attention and ffn before the residual is added
    tied: bool  # head == embed
    ropes: tuple[Rope, ...]
    layers: tuple[Layer, ...]

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor the model needs with its shape: matrices (out, in), vectors (n,); in file order."""
        q, kv, h, f, d = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.hidden, self.ffn, self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"embed": (self.vocab, h)}
        for i in range(len(self.layers)):
            p = f"layers.{i}."
            shapes |= {p + "attn_norm": (h,), p + "q": (q, h), p + "k": (kv, h), p + "v": (kv, h)}
            if self.qk_norm:
                shapes |= {p + "q_norm": (d,), p + "k_norm": (d,)}
            shapes[p + "o"] = (h, q)
            if self.post_norms:
                shapes[p + "attn_post_norm"] = (h,)
            shapes |= {p + "ffn_norm": (h,), p + "gate": (f, h), p + "up": (f, h), p + "down": (h, f)}
            if self.post_norms:
                shapes[p + "ffn_post_norm"] = (h,)
        shapes["final_norm"] = (h,)
        if not self.tied:
            shapes["head"] = (self.vocab, h)
        return shapes

    def to_json(self) -> dict[str, Any]:
        """A plain dict that from_json() turns back into an equal record."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> ModelSpec:
        """The inverse of to_json(). Raises KeyError or TypeError on a record of another shape."""
        fields = dict(data)
        fields["ropes"] = tuple(Rope(inv_freq=tuple(r["inv_freq"])) for r in fields["ropes"])
        fields["layers"] = tuple(Layer(**layer) for layer in fields["layers"])
        return ModelSpec(**fields)
