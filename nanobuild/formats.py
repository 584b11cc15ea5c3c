# SPDX-License-Identifier: Apache-2.0
"""Weight formats: how one row of weights becomes codes and scales, and back.

weight = row_scale * 2^row_exp * group_scale * value, value = table[code] (4 bits) or the code itself (8 bits).
The searched round-to-nearest encoder, the decoder and the byte counts live here; layouts on disk in packing.py.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

F32: TypeAlias = npt.NDArray[np.float32]
U8: TypeAlias = npt.NDArray[np.uint8]
I8: TypeAlias = npt.NDArray[np.int8]
F16: TypeAlias = npt.NDArray[np.float16]

BLOCK = 32  # activations that share one scale
GROUPS = (16, 32, 64, 128)

# Lloyd-Max levels of Gaussian weights under a searched scale per group, rounded to 7 bits: an 8-bit table is 0.3 %
# better in squared error, a 6-bit one 2.5 % worse, and 7 bits is what unsigned-by-signed byte products bear.
TABLE4 = (-63, -49, -39, -30, -23, -16, -9, -3, 3, 9, 16, 23, 30, 39, 49, 63)

_SEARCH4 = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76, 0.72, 0.68, 1.04)  # multiples of max|w| / 63 worth trying
_TINY = 2.0**-100  # a row whose largest magnitude is below this is stored as zeros


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """One weight format: bits a code, weights a group scale."""

    bits: int  # 4 or 8
    group: int  # one of GROUPS; not 16 at 8 bits

    def __post_init__(self) -> None:
        if self.bits not in (4, 8) or self.group not in GROUPS or (self.bits == 8 and self.group == 16):
            raise ValueError(f"no such format: {self.bits} bits in groups of {self.group}")

    @property
    def name(self) -> str:
        return f"q{self.bits}g{self.group}s8"

    @property
    def limit(self) -> int:
        """Largest magnitude of a value."""
        return TABLE4[-1] if self.bits == 4 else 127

    def groups(self, cols: int) -> int:
        """Scales in a row of `cols` weights; the last group may be shorter."""
        return -(-cols // self.group)

    def code_bytes(self, cols: int) -> int:
        """Bytes of one row of codes in the portable file."""
        return -(-cols * self.bits // 8)

    def portable_bytes(self, rows: int, cols: int) -> int:
        """Bytes of one matrix in the portable file: codes, group scales, float16 row scales."""
        return rows * (self.code_bytes(cols) + self.groups(cols) + 2)


def parse_format(name: str) -> Format:
    """'q4g32s8' -> Format. Raises ValueError on any other text."""
    for bits in (4, 8):
        for group in GROUPS:
            if name == f"q{bits}g{group}s8":
                return Format(bits=bits, group=group)
    raise ValueError(f"no such format: {name}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Quantized:
    """A quantized matrix, unpacked: one code a byte."""

    format: Format
    codes: U8  # (rows, cols); at 8 bits the bit pattern of an int8
    scales: U8  # (rows, groups)
    row_scales: F16  # (rows,)
    row_exp: int

    @property
    def values(self) -> I8:
        """(rows, cols): the small integers that the codes stand for."""
        if self.format.bits == 8:
            return self.codes.view(np.int8)
        return np.array(TABLE4, np.int8)[self.codes]

    def row_factors(self) -> F32:
        """(rows,): row_scale * 2^row_exp, exact in float32."""
        return np.ldexp(self.row_scales.astype(np.float32), self.row_exp).astype(np.float32)

    def scaled_values(self) -> npt.NDArray[np.int32]:
        """(rows, cols): group_scale * value, exact."""
        cols = self.codes.shape[1]
        scales = np.repeat(self.scales.astype(np.int32), self.format.group, axis=1)[:, :cols]
        return self.values.astype(np.int32) * scales

    def dequantized(self) -> F32:
        """(rows, cols): fl(row factor * (group_scale * value)), as the contract defines an embedding row."""
        return self.scaled_values().astype(np.float32) * self.row_factors()[:, None]


def row_exponent(largest: float) -> int:
    """Exponent that puts a tensor's largest row factor into [2^14, 2^15), so that float16 has 28 binades below it."""
    return max(-100, min(100, math.frexp(largest)[1] - 15)) if largest > 0 else 0


def row_exponent_for(fmt: Format, max_abs: float) -> int:
    """row_exp of a whole tensor whose largest magnitude is `max_abs`: known before its first row is encoded."""
    return row_exponent(_factor(fmt, max_abs))


def _factor(fmt: Format, max_abs: float) -> float:
    # 4 % of room above, so that the search may also try a step larger than max|w| / 63 in the largest group
    return max_abs * (1.04 if fmt.bits == 4 else 1.0) / (fmt.limit * 255.0)


def quantize(weights: F32, fmt: Format, row_exp: int) -> Quantized:
    """Searched round-to-nearest of (rows, cols) float32, finite. Rows are independent: any split gives the same bits.

    For each group several steps around max|w| / limit are tried and the one with the least squared error is kept;
    the step is row factor * integer, with the row factor already rounded to float16 (two-level scales).
    """
    rows, cols = weights.shape
    groups = fmt.groups(cols)
    padded = np.zeros((rows, groups * fmt.group), np.float32)
    padded[:, :cols] = weights
    grouped = padded.reshape(rows, groups, fmt.group)
    group_max = np.abs(grouped).max(axis=2)  # (rows, groups)
    row_max = group_max.max(axis=1)
    row_scales = np.zeros(rows, np.float16)
    live = row_max >= _TINY
    factor = np.ldexp(_factor(fmt, 1.0) * row_max.astype(np.float64), -row_exp)
    row_scales[live] = np.maximum(factor[live], 2.0**-24).astype(np.float16)
    step = np.ldexp(row_scales.astype(np.float32), row_exp)  # (rows,)
    tail = cols - (groups - 1) * fmt.group  # weights in the last group; the table has no zero for what lies past them
    codes, scales = _search4(grouped, group_max, step, tail) if fmt.bits == 4 else _search8(grouped, group_max, step)
    return Quantized(
        format=fmt,
        codes=np.ascontiguousarray(codes.reshape(rows, -1)[:, :cols]),
        scales=scales,
        row_scales=row_scales,
        row_exp=row_exp,
    )


def _reciprocal(step: F32) -> F32:
    out = np.zeros_like(step)
    np.divide(np.float32(1), step, out=out, where=step > 0)
    return out


def _nearest4() -> tuple[U8, F32]:
    # all midpoints between table entries are multiples of 1/2, so floor(2 y) decides the nearest entry
    edges = [(a + b) for a, b in itertools.pairwise(TABLE4)]  # in halves
    index = np.searchsorted(np.array(edges), np.arange(-130, 130), side="right")
    return index.astype(np.uint8), np.array(TABLE4, np.float32)


_LUT4, _VALUES4 = _nearest4()


def _codes4(grouped: F32, step: F32) -> U8:
    y = grouped * _reciprocal(step)[..., None]
    y += y
    np.floor(y, out=y)
    np.clip(y, -130, 129, out=y)
    return _LUT4[y.astype(np.int16) + 130]


def _search4(grouped: F32, group_max: F32, step: F32, tail: int) -> tuple[U8, U8]:
    unit = _reciprocal(step)[:, None] * (group_max / np.float32(63))  # (rows, groups) ideal scale in row steps
    best_error = np.full(group_max.shape, np.inf, np.float32)
    best_scale = np.zeros(group_max.shape, np.uint8)
    best_codes = np.full(grouped.shape, _LUT4[130], np.uint8)
    for multiple in _SEARCH4:
        scale = np.clip(np.rint(unit * np.float32(multiple)), 0, 255).astype(np.uint8)
        actual = scale.astype(np.float32) * step[:, None]
        codes = _codes4(grouped, actual)
        delta = _VALUES4[codes]
        delta *= actual[..., None]
        delta -= grouped
        delta[:, -1, tail:] = 0
        error = np.einsum("rgk,rgk->rg", delta, delta)
        better = error < best_error
        best_error[better] = error[better]
        best_scale[better] = scale[better]
        best_codes[better] = codes[better]
    best_codes[best_scale == 0] = _LUT4[130]
    return best_codes, best_scale


def _search8(grouped: F32, group_max: F32, step: F32) -> tuple[U8, U8]:
    # the smallest integer scale that clips nothing; one less is tried where its clipping costs less than it gains
    unit = _reciprocal(step)[:, None] * (group_max / np.float32(127))
    best_scale = np.clip(np.ceil(unit), 0, 255).astype(np.uint8)
    best_codes, best_error = _codes8(grouped, best_scale, step)
    lower = np.maximum(best_scale.astype(np.int16) - 1, 0).astype(np.uint8)
    codes, error = _codes8(grouped, lower, step)
    better = error < best_error
    best_scale[better] = lower[better]
    best_codes[better] = codes[better]
    return best_codes.view(np.uint8), best_scale


def _codes8(grouped: F32, scale: U8, step: F32) -> tuple[I8, F32]:
    actual = scale.astype(np.float32) * step[:, None]
    y = grouped * _reciprocal(actual)[..., None]
    np.rint(y, out=y)
    np.clip(y, -127, 127, out=y)
    codes = y.astype(np.int8)
    y *= actual[..., None]
    y -= grouped
    return codes, np.einsum("rgk,rgk->rg", y, y)
