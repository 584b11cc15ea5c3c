# SPDX-License-Identifier: Apache-2.0
"""The runtime as tests use it: a program and a library built once, tiny model files, and their paths.

NB_TEST_BUILD names a folder with `run` and `libnano.so` built some other way (sanitizers, another compiler).
"""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tiny

from nanobuild.chat import compile_chat
from nanobuild.checkpoint import open_checkpoint
from nanobuild.compile import build_binary, build_library
from nanobuild.formats import F32, Format, quantize, row_exponent_for
from nanobuild.modelfile import Tensor, write_model
from nanobuild.packing import pack
from nanobuild.platforms import load_platform
from nanobuild.spec import Layer, ModelSpec, Rope
from nanobuild.tokenizers import load_tokenizer

FORMATS = tuple(Format(bits=b, group=g) for b, g in ((4, 16), (4, 32), (8, 32), (4, 64), (8, 128)))


@functools.cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="nb-run-"))


@functools.cache
def program() -> Path:
    """The static program."""
    if "NB_TEST_BUILD" in os.environ:
        return Path(os.environ["NB_TEST_BUILD"]) / "run"
    build_binary(load_platform("generic-x86_64"), _folder() / "run")
    return _folder() / "run"


@functools.cache
def library() -> Path:
    """libnano.so."""
    if "NB_TEST_BUILD" in os.environ:
        return Path(os.environ["NB_TEST_BUILD"]) / "libnano.so"
    build_library(_folder() / "libnano.so")
    return _folder() / "libnano.so"


def run(
    *arguments: object, stdin: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """The program with arguments."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("NB_")} | (env or {})
    words = [str(program()), *(a if isinstance(a, bytes) else str(a) for a in arguments)]
    return subprocess.run(words, input=stdin, capture_output=True, env=clean, timeout=60, check=False)


def _tensor(name: str, values: F32, fmt: Format) -> Tensor:
    if values.ndim == 1:
        data = values.astype("<f4").tobytes()
        return Tensor(name=name, format=None, rows=1, cols=values.size, row_exp=0, pieces=lambda: iter([data]))
    exponent = row_exponent_for(fmt, float(np.abs(values).max()))
    packed = pack(quantize(values, fmt, exponent)).tobytes()
    rows, cols = values.shape
    return Tensor(name=name, format=fmt, rows=rows, cols=cols, row_exp=exponent, pieces=lambda: iter([packed]))


def random_model(
    path: Path, *, rot: int | None = None, ropes: int = 1, window: int = 0, layers: int = 3, seed: int = 0, **over: Any
) -> ModelSpec:
    """A model of random weights in all formats, without a tokenizer; windows on every other layer."""
    rng = np.random.default_rng(seed)
    fields = {"hidden": 96, "ffn": 208, "heads": 6, "kv_heads": 2, "head_dim": 24, "vocab": 203, "max_positions": 1024}
    fields |= {"qk_norm": False, "post_norms": False, "tied": True, "activation": "silu"} | over
    half = (rot or fields["head_dim"]) // 2
    frequencies = [(10000.0 * (k + 1)) ** (-np.arange(half) / half) for k in range(ropes)]
    spec = ModelSpec(
        family="random",
        norm_eps=2.0**-17,
        attn_scale=float(np.float32(fields["head_dim"] ** -0.5)),
        embed_scale=1.25,
        ropes=tuple(Rope(inv_freq=tuple(float(np.float32(f)) for f in row)) for row in frequencies),
        layers=tuple(Layer(rope=i % ropes, window=0 if i % 2 else window) for i in range(layers)),
        **fields,
    )
    tensors = []
    for i, (name, shape) in enumerate(spec.tensor_shapes().items()):
        noise = rng.standard_normal(shape).astype(np.float32)
        values = 1 + noise / 10 if len(shape) == 1 else noise * np.float32(shape[1] ** -0.5)
        tensors.append(_tensor(name, values.astype(np.float32), FORMATS[i % len(FORMATS)]))
    write_model(path, spec, tensors, tokenizer=b"", chat=b"", meta={"family": "random"})
    return spec


def text_model(folder: Path, *, chat: bool = True, **over: Any) -> Path:
    """folder/model.nano: the tiny Llama with its tokenizer and chat template."""
    source = tiny.write_hf(folder / "hf", tiny.llama(**over))
    with open_checkpoint(source) as checkpoint:
        tok = load_tokenizer(
            checkpoint.tokenizer_source,
            vocab=checkpoint.spec.vocab,
            eos_ids=checkpoint.eos_ids,
            bos_id=checkpoint.bos_id,
        )
        parts, reason = compile_chat(tok.chat_template if chat else None, tok)
        assert bool(parts) == chat, reason
        tensors = [_tensor(name, checkpoint.read(name), FORMATS[2]) for name in checkpoint.spec.tensor_shapes()]
        out = folder / "model.nano"
        write_model(out, checkpoint.spec, tensors, tokenizer=tok.to_bytes(), chat=parts, meta={"family": "llama"})
    return out


def ids_for(spec: ModelSpec, n: int, seed: int = 5) -> list[int]:
    """n token ids."""
    return [int(i) for i in np.random.default_rng(seed).integers(0, spec.vocab, n)]


def same_bits(a: Sequence[float] | F32, b: F32) -> bool:
    """Equal as bytes, so that -0, NaN and rounding all count."""
    return np.asarray(a, np.float32).tobytes() == np.ascontiguousarray(b, np.float32).tobytes()
