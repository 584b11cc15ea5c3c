# SPDX-License-Identifier: Apache-2.0
"""Codes and scales: what quantizing must and must not do to a row of weights."""

from __future__ import annotations

import numpy as np
import pytest

from nanobuild import packing
from nanobuild.formats import GROUPS, TABLE4, Format, parse_format, quantize, row_exponent_for

FORMATS = [Format(bits=b, group=g) for b in (4, 8) for g in GROUPS if (b, g) != (8, 16)]


def encoded(weights: np.ndarray, fmt: Format):
    return quantize(weights, fmt, row_exponent_for(fmt, float(np.abs(weights).max())))


def gaussian(rows: int, cols: int, scale: float = 0.05, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, cols)) * scale).astype(np.float32)


def relative_error(weights: np.ndarray, fmt: Format) -> float:
    delta = encoded(weights, fmt).dequantized() - weights
    return float((delta**2).sum() / (weights**2).sum())


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_name_round_trip(fmt: Format) -> None:
    assert parse_format(fmt.name) == fmt


@pytest.mark.parametrize("name", ["q3g32s8", "q8g16s8", "q4g48s8", "q4", ""])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no such format"):
        parse_format(name)


def test_four_bits_come_close_to_the_best_sixteen_levels() -> None:
    # 16 Lloyd-Max levels with a free scale per group of 32 give 0.00583 on Gaussian weights; plain min/max 0.0120
    assert relative_error(gaussian(256, 512), Format(bits=4, group=32)) < 0.0062


def test_search_beats_the_largest_magnitude_rule() -> None:
    w, fmt = gaussian(64, 512), Format(bits=4, group=64)
    grouped = w.reshape(64, -1, 64)
    step = np.abs(grouped).max(axis=2, keepdims=True) / TABLE4[-1]
    table = np.array(TABLE4, np.float32)
    nearest = table[np.abs(grouped[..., None] / step[..., None] - table).argmin(axis=-1)] * step
    assert relative_error(w, fmt) < 0.95 * float(((nearest - grouped) ** 2).sum() / (w**2).sum())


def test_smaller_groups_never_cost_quality() -> None:
    w = gaussian(64, 512) * np.linspace(0.2, 3, 512, dtype=np.float32)
    errors = [relative_error(w, Format(bits=4, group=g)) for g in GROUPS]
    assert errors == sorted(errors)


def test_eight_bits_are_nearly_exact() -> None:
    assert relative_error(gaussian(64, 512), Format(bits=8, group=32)) < 4e-5


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_zeros_and_tiny_rows_stay_zero(fmt: Format) -> None:
    w = gaussian(20, 200)
    w[3] = 0
    w[4] = 1e-38  # below 2^-100: too small for any scale
    w[5, :128] = 0
    back = encoded(w, fmt).dequantized()
    assert not back[3].any()
    assert not back[4].any()
    assert not back[5, :128].any()
    assert np.isfinite(back).all()


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_constant_groups_and_one_huge_outlier(fmt: Format) -> None:
    w = np.full((4, 256), -0.75, np.float32)
    w[1, 7] = 3e4
    back = encoded(w, fmt).dequantized()
    assert np.allclose(back[0], -0.75, rtol=0.005)
    assert np.isclose(back[1, 7], 3e4, rtol=0.01 if fmt.bits == 8 else 0.25)  # 4 bits may clip to spare the rest


@pytest.mark.parametrize("exponent", [-60, -20, 0, 20, 60])
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_any_power_of_two_gives_the_same_codes(fmt: Format, exponent: int) -> None:
    w = gaussian(16, 64, 1.0)
    scaled = np.ldexp(w, exponent)
    a, b = encoded(w, fmt), encoded(scaled, fmt)
    assert (a.codes == b.codes).all()
    assert (a.scales == b.scales).all()
    assert (np.ldexp(a.dequantized(), exponent) == b.dequantized()).all()


@pytest.mark.parametrize("cols", [1, 15, 31, 40, 100, 172])
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_widths_that_no_group_divides(fmt: Format, cols: int) -> None:
    w = gaussian(5, cols)
    q = encoded(w, fmt)
    assert q.codes.shape == (5, cols)
    assert q.scales.shape == (5, fmt.groups(cols))
    assert float(((q.dequantized() - w) ** 2).sum() / (w**2).sum()) < 0.02


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_rows_do_not_know_each_other(fmt: Format) -> None:
    w = gaussian(48, 96)
    exponent = row_exponent_for(fmt, float(np.abs(w).max()))
    whole, part = quantize(w, fmt, exponent), quantize(w[16:32], fmt, exponent)
    assert (whole.codes[16:32] == part.codes).all()
    assert (whole.scales[16:32] == part.scales).all()


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (16, 32), (17, 33), (37, 100), (64, 576), (3, 640)])
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_pack_round_trip(fmt: Format, rows: int, cols: int) -> None:
    q = encoded(gaussian(rows, cols), fmt)
    packed = packing.pack(q)
    assert packed.size == packing.matrix_bytes(fmt, rows, cols)
    assert packing.panel_stride(fmt, cols) % 64 == 0
    back = packing.unpack(packed, fmt, rows, cols, q.row_exp)
    assert (back.codes == q.codes).all()
    assert (back.scales == q.scales).all()
    assert (back.row_scales == q.row_scales).all()


def test_packed_bytes_stand_where_the_format_says() -> None:
    fmt = Format(bits=4, group=16)
    q = encoded(gaussian(32, 64), fmt)
    panel = packing.pack(q)[1]
    assert packing.code_offset(fmt, 64) == 128  # 32 row-scale bytes + 4 groups * 16, then 64-aligned
    assert panel[32 + 2 * 16 + 5] == q.scales[16 + 5, 2]
    row, k, block = 9, 6, 1
    byte = panel[128 + block * 256 + (k // 4) * 64 + row * 4 + k % 4]
    assert byte & 15 == q.codes[16 + row, 32 + k]
    assert byte >> 4 == q.codes[16 + row, 32 + k + 16]


@pytest.mark.parametrize("cols", [1, 2, 7, 64])
def test_nibbles_round_trip(cols: int) -> None:
    codes = np.random.default_rng(1).integers(0, 16, (6, cols)).astype(np.uint8)
    packed = packing.nibbles(codes)
    assert packed.shape == (6, -(-cols // 2))
    assert (packing.from_nibbles(packed, cols) == codes).all()
