# SPDX-License-Identifier: Apache-2.0
"""A64 instructions by the feature they need; the table is data/instructions_arm64.txt.

The base is Armv8.0-A with FP and Advanced SIMD; its rows are exact, so that unallocated words are found. Rows above
the base may take in neighbours that nobody has. Hints (PAC on LR, BTI, ...) are NOPs on CPUs without them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from nanobuild.isaclasses import UNKNOWN, Instruction, patterns

BASE = frozenset({"base", "fp", "asimd"})
_TABLE = "instructions_arm64.txt"


def decode(code: bytes, cuts: Sequence[int]) -> list[list[Instruction]]:
    """One word an instruction; words of zeros are padding."""
    words = np.frombuffer(code[: len(code) // 4 * 4], "<u4")
    found = patterns.needs(patterns.load(_TABLE, 32), words)
    for index in np.flatnonzero(words == 0).tolist():
        found[index] = ()
    pieces: list[list[Instruction]] = []
    for start, end in itertools.pairwise(cuts):
        if start % 4 or end % 4:
            pieces.append([(start, UNKNOWN)])
        else:
            pieces.append(list(zip(range(start, end, 4), found[start // 4 : end // 4], strict=True)))
    return pieces


def text(code: bytes, offset: int, address: int) -> str:
    """The name of the instruction's row and its word."""
    del address
    return patterns.text(patterns.load(_TABLE, 32), int.from_bytes(code[offset : offset + 4], "little"))
