# SPDX-License-Identifier: Apache-2.0
"""RISC-V instructions by the extension they need; the tables are data/instructions_riscv64.txt and ..._riscv64c.txt.

The base is rv64gc, what Linux distributions ask for. Vector instructions of any element type need "v":
the type is in vtype, not in the instruction. Hints (prefetch, pause) are NOPs on CPUs without them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from nanobuild.isaclasses import UNKNOWN, Instruction, patterns

BASE = frozenset({"i", "m", "a", "f", "d", "c"})
_WORDS, _HALVES = "instructions_riscv64.txt", "instructions_riscv64c.txt"


def decode(code: bytes, cuts: Sequence[int]) -> list[list[Instruction]]:
    """Two or four bytes an instruction, by the lowest two bits; halves of zeros are padding."""
    halves = np.frombuffer(code + bytes(len(code) % 2), "<u2").astype(np.uint32)
    is_word = ((halves & 3) == 3).tolist()
    starts: list[int] = []  # in halves
    ends: list[int] = []  # one past the last instruction of each piece
    broken: list[int] = []  # the last instruction, where it does not end with its piece
    for start, end in itertools.pairwise(cuts):
        place = start // 2
        while place * 2 < end:
            starts.append(place)
            place += 1 + is_word[place]
        broken += [len(starts) - 1] if place * 2 != end or start % 2 else []
        ends.append(len(starts))
    at = np.array(starts, np.intp)
    low = halves[at]
    words = low | np.append(halves[1:], np.uint32(0))[at] << np.uint32(16)
    long = (low & 3) == 3
    needs: list[tuple[str, ...]] = [()] * len(starts)
    for chosen, width, table, values in ((long, 32, _WORDS, words), (~long & (low != 0), 16, _HALVES, low)):
        where = np.flatnonzero(chosen)
        for index, need in zip(where.tolist(), patterns.needs(patterns.load(table, width), values[where]), strict=True):
            needs[index] = need
    for index in broken:
        needs[index] = UNKNOWN
    offsets = (at * 2).tolist()
    return [
        list(zip(offsets[begin:end], needs[begin:end], strict=True))
        for begin, end in zip([0, *ends], ends, strict=False)
    ]


def text(code: bytes, offset: int, address: int) -> str:
    """The name of the instruction's row and its word."""
    del address
    width = 32 if code[offset] & 3 == 3 else 16
    word = int.from_bytes(code[offset : offset + width // 8], "little")
    return patterns.text(patterns.load(_WORDS if width == 32 else _HALVES, width), word)
