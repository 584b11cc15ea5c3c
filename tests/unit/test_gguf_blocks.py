# SPDX-License-Identifier: Apache-2.0
"""Every GGUF block type, bit for bit against the reference Python package, on random bytes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from nanobuild.gguf_blocks import BLOCK_TYPES, OTHER_TYPES, BlockType, dequantize


@pytest.mark.parametrize(("number", "kind"), BLOCK_TYPES.items(), ids=lambda x: getattr(x, "name", str(x)))
def test_bits_equal_the_reference(number: int, kind: BlockType) -> None:
    theirs = gguf.GGMLQuantizationType(number)
    assert (theirs.name, gguf.GGML_QUANT_SIZES[theirs]) == (kind.name, (kind.values, kind.nbytes))
    raw = np.random.default_rng(number).integers(0, 256, (600, 2 * kind.nbytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        if kind.name in ("F32", "F16"):
            want = raw.view("<f4" if kind.name == "F32" else "<f2").astype(np.float32).reshape(-1)
        else:
            want = np.ascontiguousarray(gguf.quants.dequantize(raw, theirs), np.float32).reshape(-1)
    got = dequantize(kind, raw)
    assert got.shape == (1200 * kind.values,)
    assert np.array_equal(got.view(np.uint32), want.view(np.uint32))


def test_names_of_types_that_are_not_read() -> None:
    for number, name in OTHER_TYPES.items():
        assert number not in BLOCK_TYPES
        if number in gguf.GGMLQuantizationType._value2member_map_:
            assert gguf.GGMLQuantizationType(number).name == name
