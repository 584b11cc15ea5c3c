# SPDX-License-Identifier: Apache-2.0
"""GGUF block types: how many values and bytes a block has, and how its bytes become float32.

Every decoder takes (blocks, bytes) uint8 and gives (blocks, values) float32, rounding after each operation, so the
result is the same bits everywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from nanobuild.rawfile import FloatArray

Bytes = npt.NDArray[np.uint8]
Codes = npt.NDArray[np.uint8]

_IQ4_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)  # the non-linear 4-bit code book of IQ4_NL and IQ4_XS


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BlockType:
    """One GGUF tensor type that can be read."""

    name: str
    values: int  # per block
    nbytes: int  # per block
    decode: Callable[[Bytes], FloatArray]


def _half(raw: Bytes, at: int) -> FloatArray:
    """The float16 at byte `at` of every block, as a float32 column."""
    return raw[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _floats(codes: npt.NDArray[np.generic]) -> FloatArray:
    return codes.astype(np.float32)


def _nibbles(raw: Bytes, groups: int) -> Codes:
    """Low nibbles of a group's bytes first, then the high ones: (n, bytes) -> (n, groups, 2 * bytes / groups)."""
    grouped = raw.reshape(len(raw), groups, 1, -1)
    shifts = np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)
    return ((grouped >> shifts) & np.uint8(15)).reshape(len(raw), groups, -1)


def _fields(raw: Bytes, shifts: tuple[int, ...], mask: int) -> Codes:
    """The same field at several shifts, one row per shift: (n, bytes) -> (n, len(shifts), bytes)."""
    table = np.array(shifts, np.uint8).reshape(1, -1, 1)
    return (raw[:, None, :] >> table) & np.uint8(mask)


def _f32(raw: Bytes) -> FloatArray:
    return raw.view(np.float32)


def _f16(raw: Bytes) -> FloatArray:
    return _floats(raw.view(np.float16))


def _bf16(raw: Bytes) -> FloatArray:
    return (raw.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _q4_0(raw: Bytes) -> FloatArray:
    q = _floats(_nibbles(raw[:, 2:], 1)[:, 0]) - np.float32(8)
    return _half(raw, 0) * q


def _q4_1(raw: Bytes) -> FloatArray:
    return _half(raw, 0) * _floats(_nibbles(raw[:, 4:], 1)[:, 0]) + _half(raw, 2)


def _fifth_bits(raw: Bytes) -> Codes:
    return np.unpackbits(raw, axis=1, bitorder="little") << np.uint8(4)


def _q5_0(raw: Bytes) -> FloatArray:
    q = _floats(_nibbles(raw[:, 6:], 1)[:, 0] | _fifth_bits(raw[:, 2:6])) - np.float32(16)
    return _half(raw, 0) * q


def _q5_1(raw: Bytes) -> FloatArray:
    q = _nibbles(raw[:, 8:], 1)[:, 0] | _fifth_bits(raw[:, 4:8])
    return _half(raw, 0) * _floats(q) + _half(raw, 2)


def _q8_0(raw: Bytes) -> FloatArray:
    return _half(raw, 0) * _floats(raw[:, 2:].view(np.int8))


def _two_bits(raw: Bytes) -> Codes:
    """64 bytes -> 256 two-bit codes: each half of 32 bytes gives four runs of 32, lowest bits first."""
    return _fields(raw.reshape(-1, 32), (0, 2, 4, 6), 3).reshape(len(raw), 16, 16)


def _q2_k(raw: Bytes) -> FloatArray:
    scales = raw[:, :16]
    step = (_half(raw, 80) * _floats(scales & np.uint8(15)))[:, :, None]
    low = (_half(raw, 82) * _floats(scales >> np.uint8(4)))[:, :, None]
    return (step * _floats(_two_bits(raw[:, 16:80])) - low).reshape(len(raw), 256)


def _q3_k(raw: Bytes) -> FloatArray:
    high_bit = _fields(raw[:, :32], (0, 1, 2, 3, 4, 5, 6, 7), 1).reshape(len(raw), 16, 16)
    q = _floats(_two_bits(raw[:, 32:96]) | (high_bit << np.uint8(2))) - np.float32(4)
    low = _fields(raw[:, 96:104], (0, 4), 15).reshape(len(raw), 16)
    high = _fields(raw[:, 104:108], (0, 2, 4, 6), 3).reshape(len(raw), 16)
    scales = _floats(low | (high << np.uint8(4))) - np.float32(32)
    values: FloatArray = (_half(raw, 108) * scales)[:, :, None] * q
    return values.reshape(len(raw), 256)


def _six_bit_pairs(raw: Bytes) -> tuple[FloatArray, FloatArray]:
    """12 bytes -> eight 6-bit scales and eight 6-bit minima, the packing that Q4_K and Q5_K share."""
    a, b, c = raw[:, 0:4], raw[:, 4:8], raw[:, 8:12]
    top = np.uint8(0x30)
    scales = np.concatenate([a & np.uint8(63), (c & np.uint8(15)) | ((a >> np.uint8(2)) & top)], axis=1)
    minima = np.concatenate([b & np.uint8(63), (c >> np.uint8(4)) | ((b >> np.uint8(2)) & top)], axis=1)
    return _floats(scales), _floats(minima)


def _scaled_minus_min(raw: Bytes, q: Codes) -> FloatArray:
    """Codes (n, 8, 32) of a block that starts with d, dmin and the 12 packed bytes."""
    scales, minima = _six_bit_pairs(raw[:, 4:16])
    step, low = (_half(raw, 0) * scales)[:, :, None], (_half(raw, 2) * minima)[:, :, None]
    return (step * _floats(q) - low).reshape(len(raw), 256)


def _q4_k(raw: Bytes) -> FloatArray:
    return _scaled_minus_min(raw, _nibbles(raw[:, 16:], 4).reshape(len(raw), 8, 32))


def _q5_k(raw: Bytes) -> FloatArray:
    high = _fields(raw[:, 16:48], (0, 1, 2, 3, 4, 5, 6, 7), 1) << np.uint8(4)
    return _scaled_minus_min(raw, _nibbles(raw[:, 48:], 4).reshape(len(raw), 8, 32) | high)


def _q6_k(raw: Bytes) -> FloatArray:
    low = _nibbles(raw[:, :128], 2)  # each half: 64 low nibbles, then 64 high ones, in the order of the values
    high = _fields(raw[:, 128:192].reshape(-1, 32), (0, 2, 4, 6), 3).reshape(len(raw), 2, 128)
    q = (_floats(low | (high << np.uint8(4))) - np.float32(32)).reshape(len(raw), 16, 16)
    scales = _half(raw, 208) * _floats(raw[:, 192:208].view(np.int8))
    return (scales[:, :, None] * q).reshape(len(raw), 256)


def _iq4_nl(raw: Bytes) -> FloatArray:
    return _half(raw, 0) * _IQ4_VALUES[_nibbles(raw[:, 2:], 1)[:, 0]]


def _iq4_xs(raw: Bytes) -> FloatArray:
    low = _nibbles(raw[:, 4:8].reshape(-1, 1), 1).reshape(len(raw), 8)
    high = _nibbles_of_two(raw[:, 2:4])
    scales = _half(raw, 0) * (_floats(low | (high << np.uint8(4))) - np.float32(32))
    q = _IQ4_VALUES[_nibbles(raw[:, 8:], 8)]
    return (scales[:, :, None] * q).reshape(len(raw), 256)


def _nibbles_of_two(raw: Bytes) -> Codes:
    """Bytes -> four two-bit fields each, lowest first: (n, bytes) -> (n, 4 * bytes)."""
    return _fields(raw.reshape(-1, 1), (0, 2, 4, 6), 3).reshape(len(raw), -1)


def _type(name: str, values: int, nbytes: int, decode: Callable[[Bytes], FloatArray]) -> BlockType:
    return BlockType(name=name, values=values, nbytes=nbytes, decode=decode)


# Keyed by the number in the file.
BLOCK_TYPES: dict[int, BlockType] = {
    0: _type("F32", 1, 4, _f32),
    1: _type("F16", 1, 2, _f16),
    2: _type("Q4_0", 32, 18, _q4_0),
    3: _type("Q4_1", 32, 20, _q4_1),
    6: _type("Q5_0", 32, 22, _q5_0),
    7: _type("Q5_1", 32, 24, _q5_1),
    8: _type("Q8_0", 32, 34, _q8_0),
    10: _type("Q2_K", 256, 84, _q2_k),
    11: _type("Q3_K", 256, 110, _q3_k),
    12: _type("Q4_K", 256, 144, _q4_k),
    13: _type("Q5_K", 256, 176, _q5_k),
    14: _type("Q6_K", 256, 210, _q6_k),
    20: _type("IQ4_NL", 32, 18, _iq4_nl),
    23: _type("IQ4_XS", 256, 136, _iq4_xs),
    30: _type("BF16", 1, 2, _bf16),
}

# Types that exist but are not read; only for the message.
OTHER_TYPES: dict[int, str] = {
    4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
    39: "MXFP4",
}  # fmt: skip


def dequantize(kind: BlockType, raw: Bytes) -> FloatArray:
    """Contiguous bytes of whole blocks -> their values, one after the other, float32 (blocks * kind.values,)."""
    with np.errstate(all="ignore"):  # infinities and NaN in a scale are found by whoever uses the values
        return kind.decode(raw.reshape(-1, kind.nbytes)).reshape(-1)
