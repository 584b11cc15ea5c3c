# SPDX-License-Identifier: Apache-2.0
"""Writes SentencePiece model files field by field, so that the library can be the oracle of any piece list."""

from __future__ import annotations

import struct
from collections.abc import Iterable


def varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def data(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def piece(text: bytes, score: float, kind: int) -> bytes:
    return data(1, data(1, text) + varint(2 << 3 | 5) + struct.pack("<f", score) + number(3, kind))


def model(
    pieces: Iterable[tuple[bytes, float, int]],
    *,
    model_type: int = 2,
    byte_fallback: bool = True,
    unk: int = 0,
    bos: int = 1,
    eos: int = 2,
    dummy_prefix: bool = True,
    trim: bool = False,
    charsmap: bytes = b"",
) -> bytes:
    """A whole ModelProto."""
    trainer = number(3, model_type) + number(35, byte_fallback) + number(40, unk) + number(41, bos) + number(42, eos)
    normalizer = data(1, b"identity") + (data(2, charsmap) if charsmap else b"")
    normalizer += number(3, dummy_prefix) + number(4, trim) + number(5, 1)
    return b"".join(piece(*p) for p in pieces) + data(2, trainer) + data(3, normalizer)
