# SPDX-License-Identifier: Apache-2.0
"""Model files of well-known shapes with random codes: for timing a machine without anybody's weights.

No float model stands in between: panels are filled with random bytes whose scales are sane, so that an 8B model takes
seconds and no memory to make.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from nanobuild import packing, resources, schema
from nanobuild.errors import UsageError
from nanobuild.formats import U8, Format
from nanobuild.modelfile import Tensor, write_model
from nanobuild.progress import Progress, silent
from nanobuild.spec import Layer, ModelSpec, Rope


class Shape(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One row of data/shapes.yaml."""

    name: str
    arch: Literal["llama", "qwen2", "gemma2"]  # what GGUF calls it
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    layers: int
    tied: bool
    activation: Literal["silu", "gelu_tanh"]
    post_norms: bool
    window: int  # of every second layer, the first one included; 0: none
    positions: int
    theta: float
    eps: float


class ShapesFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """data/shapes.yaml."""

    version: int
    shapes: list[Shape]


def known_shapes() -> dict[str, Shape]:
    """All shapes by name."""
    file = schema.load(resources.package_dir() / "data" / "shapes.yaml", ShapesFile, kind="BOARD")
    return {s.name: s for s in file.shapes}


def shape_of(name: str) -> Shape:
    """A shape. Raises UsageError E_SHAPE."""
    shapes = known_shapes()
    if name not in shapes:
        raise UsageError("E_SHAPE", name, f"no such shape; known: {', '.join(shapes)}")
    return shapes[name]


def shape_key(shape: Shape) -> str:
    """Changes when anything about the shape does; for names in the cache."""
    return hashlib.sha256(repr(shape).encode()).hexdigest()[:8]


def shape_spec(s: Shape) -> ModelSpec:
    """The feature record of a shape."""
    half = s.head_dim // 2
    freq = tuple(float(f) for f in (s.theta ** (-np.arange(half) / half)).astype(np.float32))
    return ModelSpec(
        family=f"synthetic {s.name}",
        hidden=s.hidden,
        ffn=s.ffn,
        heads=s.heads,
        kv_heads=s.kv_heads,
        head_dim=s.head_dim,
        vocab=s.vocab,
        max_positions=s.positions,
        norm_eps=float(np.float32(s.eps)),
        activation=s.activation,
        attn_scale=s.head_dim**-0.5,
        embed_scale=1.0,
        qk_norm=False,
        post_norms=s.post_norms,
        tied=s.tied,
        ropes=(Rope(inv_freq=freq),),
        layers=tuple(Layer(rope=0, window=0 if i % 2 else s.window) for i in range(s.layers)),
    )


def write_synthetic(
    out: Path, spec: ModelSpec, *, fmt: Format, head: Format, seed: int = 0, progress: Progress = silent
) -> None:
    """A model file of random codes: `fmt` for all matrices but embedding and head, which get `head`."""
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, 1 << 22, np.uint8)
    tensors = [_tensor(name, shape, fmt, head, noise) for name, shape in spec.tensor_shapes().items()]
    total, done = sum(t.size for t in tensors), 0

    def advance(size: int) -> None:
        nonlocal done
        done += size
        progress("writing random weights", done, total)

    meta = {"family": spec.family, "seed": seed}
    write_model(out, spec, tensors, tokenizer=b"", chat=b"", meta=meta, progress=advance)


def _tensor(name: str, shape: tuple[int, ...], fmt: Format, head: Format, noise: U8) -> Tensor:
    if len(shape) == 1:
        ones = np.ones(shape[0], "<f4").tobytes()
        return Tensor(name=name, format=None, rows=1, cols=shape[0], row_exp=0, pieces=lambda: iter([ones]))
    chosen = head if name in ("embed", "head") else fmt
    rows, cols = shape

    def pieces() -> Iterator[bytes]:
        stride, offset = packing.panel_stride(chosen, cols), packing.code_offset(chosen, cols)
        at = (rows * 7919 + cols * 104729 + len(name)) % (1 << 16)
        for _ in range(packing.panels(rows)):
            panel = np.empty(stride, np.uint8)
            at = (at + 12289) % (len(noise) - stride)
            panel[:] = noise[at : at + stride]
            panel[: 2 * packing.PANEL].view("<f2")[:] = 1.0
            panel[2 * packing.PANEL : offset] |= 128  # group scales of 128 to 255
            if chosen.bits == 8:
                codes = panel[offset:].view(np.int8)
                np.maximum(codes, -127, out=codes)
            yield panel.tobytes()

    # a weight is 1.0 * 2^row_exp * about 190 * about 30: row_exp brings a row's sum back to about one
    row_exp = -13 - int(np.log2(cols) / 2) - (1 if chosen.bits == 8 else 0)
    return Tensor(name=name, format=chosen, rows=rows, cols=cols, row_exp=row_exp, pieces=pieces)
