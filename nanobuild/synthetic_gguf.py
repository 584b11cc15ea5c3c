# SPDX-License-Identifier: Apache-2.0
"""GGUF files of well-known shapes with random blocks: what other engines run beside ours, at the same bits a weight.

Types are those that llama-quantize chooses: the head, or the embedding that serves as one, gets more bits. Written as a
stream. The vocabulary is bytes and fillers, so that a prompt of five letters is five tokens.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from nanobuild.errors import UsageError
from nanobuild.formats import U8
from nanobuild.progress import Progress, silent
from nanobuild.publish import published_file
from nanobuild.synthetic import Shape

ALIGNMENT = 32
_PIECE = 1 << 19  # blocks written at a time
KINDS = ("Q4_0", "Q4_K")
_FILE_TYPES = {"Q4_0": 2, "Q4_K": 14}


@dataclasses.dataclass(frozen=True, slots=True)
class _Block:
    """A type of blocks: its number, weights and bytes, where its half-float factors are and how large each is in units
    of 1 / sqrt(columns), and which bytes are small positive scales instead of noise."""

    number: int
    weights: int
    nbytes: int
    factors: tuple[tuple[int, float], ...]
    scales: slice | None = None


_BLOCKS = {
    "F32": _Block(0, 1, 4, ()),
    "Q4_0": _Block(2, 32, 18, ((0, 1 / 4.6),)),
    "Q8_0": _Block(8, 32, 34, ((0, 1 / 74),)),
    "Q4_K": _Block(12, 256, 144, ((0, 1 / 147), (2, 7.5 / 147))),
    "Q6_K": _Block(14, 256, 210, ((208, 1 / 888),), slice(192, 208)),
}
_NORMAL, _CONTROL = 1, 3  # kinds of tokens; readers want some of the second
Value = bool | int | float | str | Sequence[str] | Sequence[int]


def can_hold(shape: Shape, kind: str) -> bool:
    """Whether every row of the shape's matrices is whole blocks of that kind."""
    block = _BLOCKS[kind].weights
    return not any(cols % block for cols in (shape.hidden, shape.ffn, shape.heads * shape.head_dim))


def write_gguf(out: Path, shape: Shape, kind: str, *, seed: int = 0, progress: Progress = silent) -> None:
    """A file whose matrices are random blocks of `kind` (one of KINDS). Raises UsageError E_SHAPE."""
    if not can_hold(shape, kind):
        raise UsageError("E_SHAPE", shape.name, f"its rows are not whole blocks of {kind}")
    tensors = [(name, dims, _kind(shape, name, dims, kind)) for name, dims in _tensors(shape)]
    meta, infos, at = _metadata(shape, kind), bytearray(), 0
    for name, dims, block in tensors:
        infos += _string(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *reversed(dims))
        infos += struct.pack("<IQ", block.number, at)
        at += _padded(_size(dims, block))
    noise = np.random.default_rng(seed).integers(0, 256, (_PIECE + 4096) * 256, np.uint8)
    done = 0
    with published_file(out) as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta)))
        for key, value in meta.items():
            file.write(_string(key) + _value(value))
        file.write(infos)
        file.write(bytes(_padded(file.tell()) - file.tell()))
        for index, (name, dims, block) in enumerate(tensors):
            size = _size(dims, block)
            if len(dims) == 1:
                file.write(np.full(dims[0], 0.01 if name.endswith("bias") else 1.0, "<f4").tobytes())
            else:
                _write_blocks(file, block, size // block.nbytes, dims[1], noise, index)
            file.write(bytes(_padded(size) - size))
            done += _padded(size)
            progress("writing random weights for the peers", done, at)


def _kind(shape: Shape, name: str, dims: tuple[int, ...], kind: str) -> _Block:
    """A tensor's type: as llama-quantize has it, six bits for the head where its rows are whole blocks, else eight."""
    if len(dims) == 1:
        return _BLOCKS["F32"]
    if name != ("token_embd.weight" if shape.tied else "output.weight"):
        return _BLOCKS[kind]
    return _BLOCKS["Q8_0" if dims[1] % 256 else "Q6_K"]


def _size(dims: tuple[int, ...], block: _Block) -> int:
    return math.prod(dims) // block.weights * block.nbytes


def _write_blocks(file: BinaryIO, block: _Block, count: int, cols: int, noise: U8, index: int) -> None:
    """`count` random blocks whose factors bring a row's sum to about one; other bytes for each tensor, because engines
    may compute equal things once."""
    for start in range(0, count, _PIECE):
        here = min(_PIECE, count - start)
        at = (index * 811 + start // _PIECE) % 4096 * block.nbytes
        blocks = noise[at : at + here * block.nbytes].reshape(here, block.nbytes).copy()
        for place, factor in block.factors:
            blocks[:, place : place + 2] = np.frombuffer(np.float16(factor * cols**-0.5).tobytes(), np.uint8)
        if block.scales:
            blocks[:, block.scales] = (blocks[:, block.scales] & 31) + 32
        file.write(blocks.tobytes())


def _tensors(s: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and dimensions, rows first, of everything that the architecture wants."""
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    yield "token_embd.weight", (s.vocab, s.hidden)
    for i in range(s.layers):
        p = f"blk.{i}."
        yield p + "attn_norm.weight", (s.hidden,)
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            yield f"{p}attn_{name}.weight", (rows, s.hidden)
            if s.arch == "qwen2":
                yield f"{p}attn_{name}.bias", (rows,)
        yield p + "attn_output.weight", (s.hidden, q)
        if s.post_norms:
            yield p + "post_attention_norm.weight", (s.hidden,)
            yield p + "post_ffw_norm.weight", (s.hidden,)
        yield p + "ffn_norm.weight", (s.hidden,)
        yield p + "ffn_gate.weight", (s.ffn, s.hidden)
        yield p + "ffn_up.weight", (s.ffn, s.hidden)
        yield p + "ffn_down.weight", (s.hidden, s.ffn)
    yield "output_norm.weight", (s.hidden,)
    if not s.tied:
        yield "output.weight", (s.vocab, s.hidden)


def _metadata(s: Shape, kind: str) -> dict[str, Value]:
    tokens, merges = _vocabulary(s.vocab)
    a = s.arch
    meta: dict[str, Value] = {
        "general.architecture": a,
        "general.name": f"synthetic {s.name} {kind}",
        "general.file_type": _FILE_TYPES[kind],
        "general.quantization_version": 2,
        f"{a}.context_length": s.positions,
        f"{a}.embedding_length": s.hidden,
        f"{a}.block_count": s.layers,
        f"{a}.feed_forward_length": s.ffn,
        f"{a}.attention.head_count": s.heads,
        f"{a}.attention.head_count_kv": s.kv_heads,
        f"{a}.attention.layer_norm_rms_epsilon": s.eps,
        f"{a}.rope.freq_base": s.theta,
        f"{a}.rope.dimension_count": s.head_dim,
        f"{a}.vocab_size": s.vocab,
    }
    if s.heads * s.head_dim != s.hidden:
        meta |= {f"{a}.attention.key_length": s.head_dim, f"{a}.attention.value_length": s.head_dim}
    if a == "gemma2":
        meta |= {f"{a}.attn_logit_softcapping": 50.0, f"{a}.final_logit_softcapping": 30.0}
        meta[f"{a}.attention.sliding_window"] = s.window
    return meta | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [_NORMAL] * (s.vocab - 2) + [_CONTROL] * 2,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": s.vocab - 2,
        "tokenizer.ggml.eos_token_id": s.vocab - 1,
        "tokenizer.ggml.add_bos_token": False,
    }


def _vocabulary(size: int) -> tuple[list[str], list[str]]:
    """Byte-level letters, merges of two digits (readers want some), fillers."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = [chr(byte) for byte in printable] + [chr(0x100 + i) for i in range(256 - len(printable))]
    pairs = [(a, b) for a in "0123456789" for b in "0123456789"]
    tokens = [*letters, *(a + b for a, b in pairs)]
    fillers = [f"<filler_{i}>" for i in range(len(tokens), size - 2)]
    return [*tokens[: size - 2], *fillers, "<|bos|>", "<|eos|>"], [f"{a} {b}" for a, b in pairs]


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Value) -> bytes:
    """Type and value; integers are unsigned, in arrays signed, of 32 bits."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_string(str(v)) for v in value)
    return struct.pack("<IIQ", 9, 5, len(value)) + np.array(value, "<i4").tobytes()
